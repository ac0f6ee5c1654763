"""One loop per TabletCluster: started with it, stopped when it is deleted, restarted after a failure."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from stele.adapters import logs
from stele.adapters.kubernetes.api import CLUSTERS, Api, Kind
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.adapters.members.client import MemberClient
from stele.adapters.spark.client import CopierClient
from stele.core.control.state import ClusterEvent, State
from stele.core.security.level import InternalTls
from stele.errors import Corrupt, SteleError
from stele.master import keyspaces, manifests, tablet_users, watch
from stele.master.cache import Cache
from stele.master.copier import SparkJobs
from stele.master.events import post
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.loop import ClusterLoop, Deposed
from stele.master.master_certificate import CopierDialling, MemberDialling
from stele.master.metrics import RECONCILE_ERRORS, forget_cluster
from stele.master.plans import fail_ownerless
from stele.master.settings import Settings
from stele.master.status import invalid
from stele.master.status_writer import patch_status
from stele.model import TabletCluster, Unreadable
from stele.model.cluster_status import TabletClusterStatus
from stele.model.ownership import CLUSTER_LABEL, NameLeaves, NameTaken

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Seconds between two checks of which clusters exist, when no watch reports a change."""

STOP_SECONDS = 1.0
"""Seconds that a loop may take to end before it is cancelled again."""

POLL_SECONDS = 0.01
HAND_OVER_SECONDS_MAX = 10.0
"""Seconds that a process that was asked to end goes on with hand-overs under way."""

FAILED_SECONDS = 5.0
FAILED_SECONDS_MAX = 60.0
"""Seconds between a loop's failure and its restart, doubled each time until a loop runs for that long."""

DEPOSED_SECONDS = 15.0
"""The minimum of that after a higher epoch: a process that lost its Lease has exited by then."""

SILENT_SECONDS = 30.0
"""A loop without progress for this long hangs: each of its requests times out sooner."""

LIST_SECONDS = 30.0
"""Seconds between two full lists, in case a watch missed a change."""

REPAIR_EPOCH = (
    "the loop waits, and continues with a higher epoch; unless another operator controls this cluster, "
    "another client wrote ConfigMap {}-table or its shards: only the operator may write them"
)

DEFECT = "a defect of Stele; the loop drops its state and restarts from the table"

Key = tuple[str, str]


class Supervisor:
    """Owns the cache and the loops of all clusters. A loop's failure does not affect the others."""

    def __init__(
        self,
        api: Api,
        dial: Callable[[MemberDialling], MemberClient],
        settings: Settings,
        dial_copier: Callable[[str, CopierDialling], CopierClient] = CopierClient,
    ) -> None:
        """`dial` returns the client for the members of one cluster, `dial_copier` that for the URL of its
        copier."""
        self._api, self._dial, self._settings, self._dial_copier = api, dial, settings, dial_copier
        self.cache = Cache(self._changed)
        self._loops: dict[Key, ClusterLoop] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._uids: dict[Key, str] = {}
        self._failures: dict[Key, str] = {}
        self._pauses: dict[Key, float] = {}
        self._epochs: dict[Key, int] = {}
        self._objects: dict[Key, KubernetesClusterObjects] = {}
        self._running: dict[Key, ClusterLoop] = {}
        self._clients: dict[ClusterLoop, MemberClient] = {}
        self._progressed_seconds: float | None = None
        self._closed = False
        self._woken = asyncio.Event()
        self._clock: Callable[[float], datetime] = _clock_of(datetime.now(UTC), time.monotonic())

    def requests(self) -> Mapping[tuple[str, str, str], int]:
        """Return the numbers of requests to the API server, by verb, kind and code."""
        return self._api.requests

    def states(self) -> dict[Key, State]:
        """Return the state of each running loop."""
        return {key: loop.state for key, loop in self._running.items() if loop.state is not None}

    def statuses(self) -> dict[Key, TabletClusterStatus]:
        """Return the last written status of each cluster."""
        return {key: objects.shown for key, objects in self._objects.items() if objects.shown is not None}

    def silent(self) -> tuple[str, ...]:
        """Return which loops hang, and for how long. One that waits to restart does not count."""
        progressed = {
            f"the loop of {place}/{name}": loop.progressed_seconds
            for (place, name), loop in self._running.items()
        }
        if self._progressed_seconds is not None:
            progressed["the supervisor"] = self._progressed_seconds
        now = time.monotonic()
        silent = {who: now - at for who, at in progressed.items() if now - at > SILENT_SECONDS}
        return tuple(f"{who} for {seconds:.0f} s" for who, seconds in silent.items())

    def _note_progress(self) -> None:
        self._progressed_seconds = time.monotonic()

    def _changed(self, kind: Kind, stored: dict[str, Any]) -> None:
        meta = stored["metadata"]
        name = (meta.get("labels") or {}).get(CLUSTER_LABEL) or stored.get("spec", {}).get("cluster")
        key = (meta["namespace"], meta["name"] if kind is CLUSTERS else str(name))
        if kind is CLUSTERS:
            self._woken.set()
        if key in self._loops:
            self._loops[key].wake()

    async def list_all(self) -> None:
        """Fill the cache from full lists, which also reveal deleted objects."""
        for namespace in (None,) if self._settings.all_namespaces else self._settings.namespaces:
            for kind in watch.WATCHED:
                self._note_progress()
                before = self.cache.newest()
                listed = await watch.listed(self._api.noting(self._note_progress), kind, namespace)
                if listed is not None:
                    self.cache.replace(kind, namespace, listed, before)

    async def run(self) -> None:
        """Run until cancelled."""
        listed = time.monotonic()
        while True:
            self._note_progress()
            await self._match()
            await self._report_ownerless()
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()
            if time.monotonic() - listed > LIST_SECONDS:
                listed = time.monotonic()
                try:
                    await self.list_all()
                except SteleError as error:
                    log.warning("cannot list objects: %s", error)

    async def _report_ownerless(self) -> None:
        """Report plans, keyspaces and users of clusters that do not exist."""
        api, clock = self._api.noting(self._note_progress), self._clock(time.monotonic())
        try:
            await fail_ownerless(api, self.cache, clock)
            await keyspaces.report_without_cluster(api, self.cache, clock)
            await tablet_users.report_without_cluster(api, self.cache, clock)
        except SteleError as error:
            log.warning("objects without a cluster: %s", error)

    async def _match(self) -> None:
        """Run a loop for each cluster that exists and is not being deleted."""
        wanted: dict[Key, dict[str, Any]] = {}
        for stored in self.cache.all(CLUSTERS):
            meta = stored["metadata"]
            if not meta.get("deletionTimestamp"):
                wanted[meta["namespace"], meta["name"]] = stored
        for key in [key for key in self._tasks if key not in wanted or self._is_other(key, wanted[key])]:
            with logs.about(namespace=key[0], cluster=key[1]):
                await self._stop(key)
            if key not in wanted or self._uids[key] != wanted[key]["metadata"]["uid"]:
                self._forget(key)
        for key, stored in wanted.items():
            if key not in self._tasks and not self._closed:
                # The loop's task has them, too, and all that it begins.
                with logs.about(namespace=key[0], cluster=key[1]):
                    await self._start(key, stored)

    def _is_other(self, key: Key, stored: dict[str, Any]) -> bool:
        return self._tasks[key].done() or self._uids[key] != stored["metadata"]["uid"]

    async def _start(self, key: Key, stored: dict[str, Any]) -> None:
        cluster = TabletCluster.read(stored)
        if isinstance(cluster, Unreadable):
            await self._show_unreadable(stored, cluster)
            return
        # The Lease was acquired before this was read: the master that wrote this status leads no more.
        self._epochs.setdefault(key, cluster.status.epoch)
        log.info("starting the loop of TabletCluster %s/%s", *key)
        loop = self._loop(cluster)
        self._loops[key], self._uids[key] = loop, cluster.metadata.uid
        self._tasks[key] = asyncio.get_running_loop().create_task(self._guard(key, loop))

    async def _show_unreadable(self, stored: dict[str, Any], why: Unreadable) -> None:
        """Report a cluster that no loop runs for, because its spec has never been valid."""
        before = stored.get("status") or {}
        if (before.get("message"), before.get("observedGeneration")) == (str(why), why.generation):
            return
        log.warning("%s", why)
        wanted = invalid(TabletClusterStatus(), why, self._clock(time.monotonic())).to_dict()
        shown = {name: wanted[name] for name in ("observedGeneration", "phase", "message", "conditions")}
        try:
            await patch_status(self._api, self.cache, CLUSTERS, stored, shown)
        except SteleError as error:
            log.warning("status of an invalid TabletCluster: %s", error)

    def _loop(self, cluster: TabletCluster) -> ClusterLoop:
        meta = cluster.metadata
        marks = manifests.labels(meta.name, "table")
        owner = manifests.owned_by_cluster(cluster)

        def note_progress() -> None:
            loop.note_progress()

        def wake() -> None:
            loop.wake()

        api = self._api.noting(note_progress)
        store = KubernetesTableStore(api, meta.namespace, meta.name, owner, marks)
        objects = KubernetesClusterObjects(api, self.cache, self._settings, cluster, self._clock)
        self._objects[meta.namespace, meta.name] = objects
        dialling = CopierDialling(objects.master_certificate, objects.cluster)

        def connect(url: str) -> CopierClient:
            return self._dial_copier(url, dialling)

        copier = SparkJobs(objects.cluster, objects.copier_url, objects.trusted, wake, connect)
        key = (meta.namespace, meta.name)

        def count_error(code: str) -> None:
            RECONCILE_ERRORS.labels(*key, code).inc()

        last = InternalTls.OFF

        def level() -> InternalTls:
            """Return the level; what is still sent when the loop has ended is at least as it was."""
            nonlocal last
            last = last if loop.state is None else loop.state.tls.level
            return last

        members = self._dial(MemberDialling(objects.master_certificate, objects.cluster, level))
        loop = ClusterLoop(store, members, objects, copier, now=time.monotonic, count_error=count_error)
        self._clients[loop] = members
        return loop

    async def _guard(self, key: Key, loop: ClusterLoop) -> None:
        """Run a loop; after a failure, wait, so that it restarts with empty memory.

        Only the Lease decides who may write: a higher epoch in one table, which any client may have written,
        ends only that loop.
        """
        began, least = time.monotonic(), FAILED_SECONDS
        self._running[key] = loop
        try:
            await loop.run()
        except Deposed as error:
            least = DEPOSED_SECONDS
            await self._report_failure(key, error.code, f"{error}: {REPAIR_EPOCH.format(key[1])}")
        except (NameTaken, NameLeaves) as error:
            await self._report_failure(key, error.code, str(error))
        except SteleError as error:
            await self._show_failure(key, str(error), lasting=isinstance(error, Corrupt))
            await self._report_failure(key, error.code, str(error))
        except Exception as error:
            log.exception("unexpected error in the loop of %s/%s", *key)
            text = f"{DEFECT}: {type(error).__name__}: {error}"
            await self._show_failure(key, text, lasting=False)
            await self._report_failure(key, "DEFECT", text)
        finally:
            await loop.close()
            if (members := self._clients.pop(loop, None)) is not None:
                await members.close()
            del self._running[key]
        await asyncio.sleep(self._pause(key, time.monotonic() - began, least))

    def _pause(self, key: Key, ran_seconds: float, least: float) -> float:
        """Return the seconds that a failed loop waits before its restart."""
        before = 0.0 if ran_seconds > FAILED_SECONDS_MAX else self._pauses.get(key, 0.0)
        self._pauses[key] = min(max(2 * before, least), FAILED_SECONDS_MAX)
        return self._pauses[key]

    async def _show_failure(self, key: Key, text: str, *, lasting: bool) -> None:
        """Write a failure into the cluster's status, unless a later master wrote that: its epoch is above
        those of this process. A failure that is repeated lasts."""
        objects = self._objects.get(key)
        if objects is None:
            return
        led = 0 if objects.shown is None else objects.shown.epoch
        epoch = self._epochs[key] = max(self._epochs.get(key, 0), led)
        lasting = lasting or self._failures.get(key) == text
        try:
            await objects.write_stopped(text, lasting=lasting, epoch=epoch)
        except SteleError as error:
            log.warning("status of %s/%s: %s", *key, error)

    async def _report_failure(self, key: Key, code: str, text: str) -> None:
        """Log and count a failure, and post an Event for each new text."""
        log.error("the loop of %s/%s failed and restarts: %s", *key, text)
        RECONCILE_ERRORS.labels(*key, code).inc()
        stored = self.cache.get(CLUSTERS, *key)
        cluster = None if stored is None else TabletCluster.read(stored)
        if self._failures.get(key) == text or not isinstance(cluster, TabletCluster):
            return
        self._failures[key] = text
        try:
            await post(self._api, cluster, [ClusterEvent("MasterStopped", text, warning=True)])
        except SteleError as error:
            log.warning("event: %s", error)

    async def _stop(self, key: Key) -> None:
        log.info("stopping the loop of TabletCluster %s/%s", *key)
        task = self._tasks.pop(key)
        self._loops.pop(key)
        self._objects.pop(key, None)
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=STOP_SECONDS)
        logs.follow_cluster(*key, None)

    def _forget(self, key: Key) -> None:
        """Forget the failures of this cluster: another one with that name is unrelated."""
        for known in (self._uids, self._failures, self._pauses, self._epochs):
            known.pop(key, None)
        forget_cluster(*key)

    async def finish_hand_overs(self) -> None:
        """End the loops once no clients wait for another owner, at most after `HAND_OVER_SECONDS_MAX`."""
        self._closed = True
        for loop in self._running.values():
            loop.end()
        deadline = time.monotonic() + HAND_OVER_SECONDS_MAX
        while self._running and time.monotonic() < deadline:  # noqa: ASYNC110  many tasks, which come and go
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        """Stop all loops, and start none again: another process may lead already."""
        self._closed = True
        for key in list(self._tasks):
            await self._stop(key)


def _clock_of(wall: datetime, monotonic: float) -> Callable[[float], datetime]:
    """Convert monotonic to wall clock times, without jitter between calls."""
    return lambda seconds: wall + timedelta(seconds=seconds - monotonic)
