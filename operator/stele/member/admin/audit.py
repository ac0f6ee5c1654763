"""A line for each change and for data that somebody asks a member for, and for each request that is refused.

The line is JSON: `who` is the URI of the certificate, or `anonymous ADDRESS` without TLS; `method`, `route`
and `target`, the path that was asked for; `status` of the answer, 0 when there was none.
"""

import itertools
import json
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import web

from stele.adapters.rate_limited_log import RateLimitedLog
from stele.adapters.tls.caller import Caller
from stele.adapters.tls.peer import holders
from stele.member import limits

log = logging.getLogger("stele.audit")
# Whatever the level of the log: who did what is asked afterwards.
log.setLevel(logging.INFO)

READS = frozenset({"GET", "HEAD", "OPTIONS"})
READS_OF_DATA = frozenset(
    {
        "/v1/digest",
        "/v1/checksum",
        "/v1/quarantine/tablets/{partition}/{generation}/entries",
        "/v1/bulk/loads/{load}",
    }
)
"""Routes that show keys or values, or the token with which data is sent. Exports begin with a change."""
REFUSED = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.UPGRADE_REQUIRED})
ANONYMOUS = "anonymous"


class Asked(NamedTuple):
    """Who asks for which route; `by_hand` is False for what master and kubelet send by themselves."""

    who: str
    route: str
    by_hand: bool


class Audit:
    """`note` writes the lines. Of changes there are at most `AUDIT_LINES_PER_SECOND_MAX` of those who show a
    certificate, and as many of others; of reads `AUDIT_READS_PER_SECOND_MAX` in the same way; of refusals,
    and of changes of what there is not, one per `AUDIT_REFUSED_SECONDS`. The next line of the kind says how
    many are missing."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._refused = RateLimitedLog(limits.AUDIT_REFUSED_SECONDS, now)
        most = {False: limits.AUDIT_LINES_PER_SECOND_MAX, True: limits.AUDIT_READS_PER_SECOND_MAX}
        kinds = itertools.product(most, (True, False))
        self._budgets = {(reads, anonymous): _Budget(most[reads], now) for reads, anonymous in kinds}

    def note(self, request: web.Request, asked: Asked, status: int) -> None:
        """Note how a request has ended."""
        reads = request.method in READS
        is_data = asked.route in READS_OF_DATA if reads else asked.by_hand
        if status in REFUSED or (is_data and not asked.route):
            missing = self._refused.admit()
        elif is_data:
            missing = self._budgets[reads, asked.who.startswith(ANONYMOUS)].admit()
        else:
            return
        if missing is not None:
            level = logging.WARNING if status in REFUSED else logging.INFO
            log.log(level, "%s", _line(request, asked, status, missing))


class _Budget:
    """Lines of one second."""

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most, self._now = most, now
        self._second, self._lines, self._missing = 0, 0, 0

    def admit(self) -> int | None:
        """Return how many lines were left out before this one; None when this one is."""
        if (second := int(self._now())) != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > self._most:
            self._missing += 1
            return None
        missing, self._missing = self._missing, 0
        return missing


def who(request: web.Request, found: Caller | None) -> str:
    """Return who sent a request: the part of a cluster that the certificate names, or the address."""
    if found is None:
        return f"{ANONYMOUS} {request.remote}"
    named = holders(found.certificate)
    return named[0].uri if len(named) == 1 else f"unknown certificate {request.remote}"


def _line(request: web.Request, asked: Asked, status: int, missing: int) -> str:
    target = request.rel_url.raw_path_qs[: limits.AUDIT_TARGET_CHARACTERS_MAX]
    line = {"who": asked.who, "method": request.method, "route": asked.route, "target": target}
    return json.dumps(line | {"status": status} | ({"missing": missing} if missing else {}))
