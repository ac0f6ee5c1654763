"""Executors that an earlier life of this pod's container left behind are deleted at its start.

They belong to the pod, which still lives, so Kubernetes does not collect them; and their driver is gone.
"""

import logging
import ssl
from pathlib import Path

import aiohttp

from stele.copyjob.conf import COPIER_LABEL
from stele.copyjob.settings import Settings

log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS_MAX = 10.0


async def delete_leftovers(settings: Settings, account: Path = ACCOUNT) -> None:
    """Delete this pod's executors. What goes wrong is logged: they are in nobody's way but take room."""
    if settings.is_local:
        return
    base = settings.master.removeprefix("k8s://").rstrip("/")
    url = f"{base}/api/v1/namespaces/{settings.namespace}/pods"
    selector = f"spark-role=executor,{COPIER_LABEL}={settings.pod_name}"
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    try:
        token = (account / "token").read_text().strip()
        trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
            http.delete(url, params={"labelSelector": selector}, ssl=trust) as answer,
        ):
            if answer.status != 200:
                log.warning("executors of an earlier start were not deleted: %s", (await answer.text())[:300])
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        log.warning("executors of an earlier start were not deleted: %s", error)
