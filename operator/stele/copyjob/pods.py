"""Executors as Kubernetes has them: why they get no place; and those whose driver is gone are deleted.

Executors of an earlier start of this container, or of a lost driver, belong to this pod, which lives on: so
Kubernetes does not collect them, and nobody else will.
"""

import asyncio
import logging
import ssl
from pathlib import Path

import aiohttp
import msgspec

from stele.copyjob.conf import COPIER_LABEL, START_LABEL
from stele.copyjob.settings import Settings

log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS_MAX = 10.0
AGAIN_SECONDS = 10.0
"""Between two attempts to delete what an earlier start left."""
REASON_CHARS_MAX = 300


class _Condition(msgspec.Struct):
    type: str
    status: str
    message: str = ""

    @property
    def refuses(self) -> bool:
        return (self.type, self.status) == ("PodScheduled", "False") and bool(self.message)


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Pod(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class _Pods(msgspec.Struct):
    items: list[_Pod]


async def sweep_leftovers(settings: Settings, account: Path = ACCOUNT) -> None:
    """Delete executors of earlier starts, and only those; tried again until it succeeds."""
    selector = f"{COPIER_LABEL}={settings.pod_name},{START_LABEL} notin ({settings.start})"
    done = await delete_executors(settings, selector, account)
    while not done:
        await asyncio.sleep(AGAIN_SECONDS)
        done = await delete_executors(settings, selector, account)


async def delete_executors(settings: Settings, selector: str, account: Path = ACCOUNT) -> bool:
    """Delete the executors with these labels; whether that was done. What goes wrong is logged."""
    return settings.is_local or await _ask("DELETE", settings, selector, account) is not None


async def why_not_placed(settings: Settings, selector: str, account: Path = ACCOUNT) -> str:
    """What the scheduler says of the first of these executors that has no place; empty when it says nothing.

    Such as of a ReadWriteOncePod volume, which no executor can be given beside the member that has it.
    """
    answer = None if settings.is_local else await _ask("GET", settings, selector, account)
    try:
        pods = () if answer is None else msgspec.json.decode(answer, type=_Pods).items
    except msgspec.MsgspecError as error:
        log.warning("executors (%s) cannot be read: %s", selector, error)
        return ""
    refusals = (each for pod in pods for each in pod.status.conditions if each.refuses)
    return next((each.message for each in refusals), "")[:REASON_CHARS_MAX]


async def _ask(method: str, settings: Settings, selector: str, account: Path) -> bytes | None:
    """Ask the API for the executors with these labels; None, which is logged, when it does not do it."""
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
            http.request(method, url, params=params, ssl=trust) as answer,
        ):
            if answer.status == 200:
                return await answer.read()
            log.warning("%s of executors (%s): %s", method, selector, (await answer.text())[:300])
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        log.warning("%s of executors (%s): %s", method, selector, error)
    return None
