"""Executors whose driver is gone are deleted: those of an earlier start of this container, or of a lost one.

They belong to this pod, which lives on, so Kubernetes does not collect them, and nobody else will.
"""

import asyncio
import logging
import ssl
from pathlib import Path

import aiohttp

from stele.copyjob.conf import COPIER_LABEL, START_LABEL
from stele.copyjob.settings import Settings

log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS_MAX = 10.0
AGAIN_SECONDS = 10.0
"""Between two attempts to delete what an earlier start left."""


async def sweep_leftovers(settings: Settings, account: Path = ACCOUNT) -> None:
    """Delete executors of earlier starts, and only those; tried again until it succeeds."""
    selector = f"{COPIER_LABEL}={settings.pod_name},{START_LABEL} notin ({settings.start})"
    done = await delete_executors(settings, selector, account)
    while not done:
        await asyncio.sleep(AGAIN_SECONDS)
        done = await delete_executors(settings, selector, account)


async def delete_executors(settings: Settings, selector: str, account: Path = ACCOUNT) -> bool:
    """Delete the executors with these labels; whether that was done. What goes wrong is logged."""
    if settings.is_local:
        return True
    base = settings.master.removeprefix("k8s://").rstrip("/")
    url = f"{base}/api/v1/namespaces/{settings.namespace}/pods"
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    try:
        token = (account / "token").read_text().strip()
        trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
        headers = {"Authorization": f"Bearer {token}"}
        params = {"labelSelector": f"spark-role=executor,{selector}"}
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
            http.delete(url, params=params, ssl=trust) as answer,
        ):
            if answer.status != 200:
                log.warning("executors (%s) were not deleted: %s", selector, (await answer.text())[:300])
            return answer.status == 200
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        log.warning("executors (%s) were not deleted: %s", selector, error)
        return False
