"""Executors' pods: why they are unschedulable, and deletion of those whose driver is gone.

Executors of an earlier start of this container, or of a lost driver, are owned by this pod, which still
exists, so Kubernetes does not collect them.
"""

import asyncio
import logging
from pathlib import Path

from stele.adapters.kubernetes.api import PODS, Api
from stele.adapters.kubernetes.pod_login import ACCOUNT, PodLogin
from stele.copyjob.conf import START_LABEL
from stele.copyjob.settings import Settings
from stele.errors import SteleError
from stele.wire.pods import COPIER_LABEL

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0
"""Interval of attempts to delete leftovers of an earlier start."""
REASON_CHARS_MAX = 300


async def sweep_leftovers(settings: Settings, account: Path = ACCOUNT) -> None:
    """Delete executors of earlier starts; retried until it succeeds."""
    selector = f"{COPIER_LABEL}={settings.pod_name},{START_LABEL} notin ({settings.start})"
    done = await delete_executors(settings, selector, account)
    while not done:
        await asyncio.sleep(AGAIN_SECONDS)
        done = await delete_executors(settings, selector, account)


async def delete_executors(settings: Settings, selector: str, account: Path = ACCOUNT) -> bool:
    """Delete the executors with these labels; return whether it was done. Errors are logged."""
    if settings.is_local:
        return True
    try:
        async with _api(settings, account) as api:
            await api.delete_all(PODS, settings.namespace, _executors(selector))
    except (SteleError, OSError) as error:
        log.warning("executors (%s) cannot be deleted: %s", selector, error)
        return False
    return True


async def why_not_placed(settings: Settings, selector: str, account: Path = ACCOUNT) -> str:
    """Return the scheduler's message about the first unschedulable executor; empty when there is none.

    An example is a ReadWriteOncePod volume, which no executor can mount beside its member.
    """
    if settings.is_local:
        return ""
    try:
        async with _api(settings, account) as api:
            pods = await api.list(PODS, settings.namespace, _executors(selector))
    except (SteleError, OSError) as error:
        log.warning("executors (%s) cannot be read: %s", selector, error)
        return ""
    conditions = [c for pod in pods for c in pod["status"].get("conditions") or ()]
    refusals = [c for c in conditions if (c["type"], c["status"]) == ("PodScheduled", "False")]
    return next((c["message"] for c in refusals if c.get("message")), "")[:REASON_CHARS_MAX]


def _api(settings: Settings, account: Path) -> Api:
    return Api(PodLogin(settings.master.removeprefix("k8s://"), account))


def _executors(selector: str) -> str:
    return f"spark-role=executor,{selector}"
