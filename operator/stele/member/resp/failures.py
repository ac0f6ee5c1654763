"""Errors as replies to clients."""

import logging

from stele.adapters.rate_limited_log import RateLimitedLog
from stele.core.kv.commands import Failure
from stele.errors import SteleError, Unavailable, Uncertain

log = logging.getLogger(__name__)

DEFECT_SECONDS = 60.0
"""Unexpected errors are logged once per this interval; the others are counted."""

_defects = RateLimitedLog(DEFECT_SECONDS)


def _plain(error: SteleError) -> str:
    """Its text; with the code only when that says more than the type does."""
    return error.text if error.code == error.code_default else str(error)


_CLUSTER_CODES = {"LOADING": "CLUSTERDOWN", "TRYAGAIN": "CLUSTERDOWN"}
"""Codes that say that nothing was done: more clients of Redis Cluster send again after CLUSTERDOWN."""


def for_cluster(failure: Failure) -> Failure:
    """Return an error of the store as the ports of the Redis Cluster protocol answer it."""
    return Failure(_CLUSTER_CODES.get(failure.code, failure.code), failure.text)


def failure_of(error: BaseException) -> Failure:
    """Convert an error of the store to a reply. Anything but a SteleError is logged as a defect."""
    if isinstance(error, Unavailable) and error.code == "LOADING":
        return Failure("LOADING", error.text)
    if isinstance(error, Unavailable):
        return Failure("TRYAGAIN", _plain(error))
    if isinstance(error, Uncertain):
        return Failure("UNCERTAIN", _plain(error))
    if isinstance(error, SteleError):
        return Failure("ERR", str(error))
    if (suppressed := _defects.admit()) is not None:
        log.error(
            "a request failed with an unexpected error (%d more were not logged)", suppressed, exc_info=error
        )
    return Failure("ERR", f"internal error {type(error).__name__}; the member's log has the details")
