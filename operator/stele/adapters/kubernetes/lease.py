"""One master at a time: a Lease that is taken, renewed, and when lost ends the leadership.

As in client-go a waiting process never compares its clock with the holder's: it measures on its own
monotonic clock for how long the Lease did not change. The holder counts its deadline from *before* the last
renewal that succeeded, so it stops before anybody else may start. What a late write of a deposed master
could still do is stopped by the epoch in the table (docs/reference/protocol.md), not by this.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stele.adapters.kubernetes.api import LEASES, Api
from stele.errors import Conflict, SteleError

log = logging.getLogger(__name__)

Lease = dict[str, Any]


@dataclass(frozen=True)
class Terms:
    """How long a lease holds without renewal, when its holder gives up, how often it is renewed."""

    duration_seconds: float = 15.0
    deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


class Election:
    """`identity` outlives a restart of the container, so that the same pod goes on at once."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        terms: Terms = Terms(),
    ) -> None:
        self._api, self._namespace, self._name, self._identity = api, namespace, name, identity
        self._monotonic, self._sleep, self._terms = monotonic, sleep, terms
        self._seen: tuple[Any, ...] = ()
        self._seen_seconds = 0.0

    async def acquire(self) -> None:
        """Return when this process holds the lease."""
        waiting_for = ""
        while True:
            holder = await self._attempt()
            if holder == self._identity:
                log.info("holds the lease %s/%s as %s", self._namespace, self._name, self._identity)
                return
            if holder != waiting_for:
                log.info("waits for the lease %s/%s, held by %s", self._namespace, self._name, holder)
                waiting_for = holder
            await self._sleep(self._terms.retry_seconds)

    async def hold(self) -> None:
        """Renew until that fails for the deadline or somebody else holds it; then return."""
        renewed = self._monotonic()
        while self._monotonic() - renewed < self._terms.deadline_seconds:
            started = self._monotonic()
            left = self._terms.deadline_seconds - (started - renewed)
            try:
                async with asyncio.timeout(left):
                    holder = await self._attempt()
            except TimeoutError:
                return
            if holder == self._identity:
                renewed = started
            elif holder:
                return
            await self._sleep(self._terms.retry_seconds)

    async def release(self) -> None:
        """Let another process take over at once; errors do not matter, the lease runs out."""
        try:
            lease = await self._api.find(LEASES, self._namespace, self._name)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(LEASES, self._namespace, lease)
        except SteleError as error:
            log.info("the lease was not given back: %s", error)

    async def _attempt(self) -> str:
        """Take or renew the lease when that is allowed; who holds it now, empty when that is unknown."""
        try:
            lease = await self._api.find(LEASES, self._namespace, self._name)
            if lease is None:
                await self._api.create(LEASES, self._namespace, self._body(None))
                return self._identity
            holder = str(lease["spec"].get("holderIdentity") or "")
            if holder not in ("", self._identity) and not self._expired(lease):
                return holder
            await self._api.replace(LEASES, self._namespace, self._body(lease))
        except Conflict:
            return ""
        except SteleError as error:
            log.warning("the lease could not be read or written: %s", error)
            return ""
        return self._identity

    def _expired(self, lease: Lease) -> bool:
        """Whether the lease did not change for its duration, on our own clock."""
        spec = lease["spec"]
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_seconds = seen, self._monotonic()
        return self._monotonic() - self._seen_seconds > float(spec.get("leaseDurationSeconds") or 0)

    def _body(self, lease: Lease | None) -> Lease:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = {} if lease is None else dict(lease["spec"])
        same = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._terms.duration_seconds),
            "acquireTime": before.get("acquireTime", now) if same else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if same else 1),
        }
        metadata = {"name": self._name} if lease is None else dict(lease["metadata"])
        return {"apiVersion": LEASES.api, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
