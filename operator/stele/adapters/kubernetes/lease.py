"""Leader election: a Lease that is acquired and renewed, and whose loss ends the leadership.

As in client-go, a waiting process never compares its clock with the holder's: it measures on its own
monotonic clock how long the Lease has been unchanged. The holder counts its deadline from *before* its last
successful renewal, so it stops before any other process may start. Late writes of a deposed master are
prevented by the epoch in the table (docs/reference/protocol.md), and not by this.
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
    """How long a lease is valid without renewal, when its holder gives up, how often it is renewed."""

    duration_seconds: float = 15.0
    deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


class Election:
    """Election of a leader.

    `identity` survives a restart of the container, so the same pod resumes at once.
    """

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
        """Wait until this process holds the lease."""
        waiting_for = ""
        while True:
            holder = await self._attempt()
            if holder == self._identity:
                log.info("acquired the lease %s/%s as %s", self._namespace, self._name, self._identity)
                return
            if holder != waiting_for:
                log.info("waiting for the lease %s/%s, held by %s", self._namespace, self._name, holder)
                waiting_for = holder
            await self._sleep(self._terms.retry_seconds)

    async def hold(self) -> None:
        """Renew until that has failed for the deadline or another process holds the lease; then return."""
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
        """Release the lease for an immediate takeover; errors are ignored, since the lease expires."""
        try:
            lease = await self._api.find(LEASES, self._namespace, self._name)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(LEASES, self._namespace, lease)
        except SteleError as error:
            log.info("the lease could not be released: %s", error)

    async def _attempt(self) -> str:
        """Acquire or renew the lease if allowed; return its present holder, empty when unknown."""
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
        """Return whether the lease has been unchanged for its duration, on this process's clock."""
        spec = lease["spec"]
        observed = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if observed != self._seen:
            self._seen, self._seen_seconds = observed, self._monotonic()
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
