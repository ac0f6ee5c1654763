"""Loops are let go of, whatever they do with a cancellation."""

import asyncio
import re
import time
from typing import Any, cast

import pytest

from stele.adapters import logs
from stele.adapters.kubernetes.api import CLUSTERS
from stele.core.control.invariants import BrokenInvariant
from stele.core.control.state import ClusterEvent, State
from stele.core.table.table import PartitionTable
from stele.errors import Corrupt
from stele.master import supervisor as tested
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.loop import ClusterLoop, Deposed
from stele.master.metrics import RECONCILE_ERRORS
from stele.master.settings import Settings
from stele.master.supervisor import DEPOSED_SECONDS, FAILED_SECONDS, FAILED_SECONDS_MAX, Supervisor
from stele.model import TabletCluster
from stele.model.cluster_status import TabletClusterStatus
from stele.model.conditions import ConditionType, set_condition
from stele.model.ownership import NameTaken
from tests.contract.conftest import simulated_api
from tests.fakes.api import NAMESPACE
from tests.fakes.kstatus import kstatus
from tests.master.test_statuses import NOON

KEY = ("ns", "demo")


@pytest.fixture
def supervisor() -> Supervisor:
    """One that asks nobody for anything."""
    return Supervisor(cast("Any", None), cast("Any", None), cast("Any", None))


class _Loop:
    """Stands for a ClusterLoop: only `wake` is called from outside."""

    def wake(self) -> None: ...


async def _deaf(swallow: int) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if not swallow:
                raise
            swallow -= 1


async def test_a_loop_that_swallows_a_cancellation_is_cancelled_again(supervisor: Supervisor) -> None:
    task = asyncio.create_task(_deaf(swallow=1))
    supervisor._loops[KEY], supervisor._tasks[KEY] = cast("ClusterLoop", _Loop()), task
    await asyncio.sleep(0)
    await asyncio.wait_for(supervisor._stop(KEY), 10)
    assert task.cancelled()
    assert KEY not in supervisor._loops


class _Failing(_Loop):
    def __init__(self, error: Exception) -> None:
        self.error = error
        self.closed = False

    async def run(self) -> None:
        raise self.error

    async def close(self) -> None:
        self.closed = True


class _HandingOver(_Loop):
    def __init__(self) -> None:
        self.asked, self.closed, self.over = False, False, asyncio.Event()

    def end(self) -> None:
        self.asked = True

    async def run(self) -> None:
        await self.over.wait()

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("ends", [True, False])
async def test_hand_overs_under_way_end_first_but_not_for_ever(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(tested, "HAND_OVER_SECONDS_MAX", 60.0 if ends else 0.05)
    loop = _HandingOver()
    guard = asyncio.create_task(supervisor._guard(KEY, cast("ClusterLoop", loop)))
    await asyncio.sleep(0)
    finished = asyncio.create_task(supervisor.finish_hand_overs())
    await asyncio.sleep(0.03)
    assert loop.asked
    assert not finished.done()
    if ends:
        loop.over.set()
    await finished
    assert loop.closed is ends
    guard.cancel()


@pytest.mark.parametrize(
    ("error", "pauses"),
    [
        (Deposed("the table has epoch 9, ours was 3"), [15.0, 30.0, 60.0, 60.0]),
        (Corrupt("two rows of one version"), [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]),
        (ValueError("a defect"), [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]),
    ],
    ids=["deposed", "corrupt", "defect"],
)
async def test_a_loop_that_fails_pauses_longer_each_time_and_ends_nothing_else(
    supervisor: Supervisor, error: Exception, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    told: list[str] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def report(key: object, code: str, text: str) -> None:
        told.append(text)

    monkeypatch.setattr(tested.asyncio, "sleep", sleep)
    monkeypatch.setattr(supervisor, "_report_failure", report)
    for _ in pauses:
        loop = _Failing(error)
        await supervisor._guard(KEY, cast("ClusterLoop", loop))
        assert loop.closed
    assert slept == pauses
    if isinstance(error, Deposed):
        assert "only the operator may write" in told[0]
        assert "demo-table" in told[0]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Corrupt("two rows of one version"), "CORRUPT", "CORRUPT: two rows of one version"),
        (BrokenInvariant("m and p change one row"), "DEFECT", "a defect of Stele; .* m and p change one row"),
    ],
)
async def test_a_failure_is_an_event_and_a_metric(
    supervisor: Supervisor,
    error: Exception,
    code: str,
    text: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    events: list[ClusterEvent] = []

    async def post(api: object, cluster: object, some: list[ClusterEvent]) -> None:
        events.extend(some)

    async def sleep(seconds: float) -> None: ...

    spec = {"members": 3, "storage": {"size": "1Gi"}}
    meta = {"namespace": "ns", "name": "demo", "uid": "u", "resourceVersion": "1"}
    supervisor.cache.put(CLUSTERS, {"kind": "TabletCluster", "metadata": meta, "spec": spec})
    monkeypatch.setattr(tested, "post", post)
    monkeypatch.setattr(tested.asyncio, "sleep", sleep)
    before = RECONCILE_ERRORS.labels(*KEY, code)._value.get()
    for _ in range(2):
        await supervisor._guard(KEY, cast("ClusterLoop", _Failing(error)))
    (event,) = events
    assert (event.reason, event.warning) == ("MasterStopped", True)
    assert re.fullmatch(text, event.message)
    assert RECONCILE_ERRORS.labels(*KEY, code)._value.get() == before + 2
    assert any(record.exc_info for record in caplog.records) == (code == "DEFECT")


def test_a_loop_that_ran_for_long_pauses_shortly_again(supervisor: Supervisor) -> None:
    assert [supervisor._pause(KEY, 1.0, DEPOSED_SECONDS) for _ in range(2)] == [15.0, 30.0]
    assert supervisor._pause(KEY, FAILED_SECONDS_MAX + 1, FAILED_SECONDS) == FAILED_SECONDS


async def test_a_loop_that_hangs_is_told_and_one_that_waits_to_start_again_is_not(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested, "SILENT_SECONDS", 0.05)

    class Loop(_Loop):
        progressed_seconds = time.monotonic()

        def __init__(self, fails: bool) -> None:
            self._fails = fails

        async def run(self) -> None:
            if self._fails:
                raise Corrupt("such a table")
            await asyncio.sleep(60)

        async def close(self) -> None:
            return

    tasks = [
        asyncio.create_task(supervisor._guard(("ns", name), cast("ClusterLoop", Loop(name == "failed"))))
        for name in ("hangs", "failed")
    ]
    await asyncio.sleep(0.1)
    (told,) = supervisor.silent()
    assert told.startswith("the loop of ns/hangs for ")
    supervisor._progressed_seconds = time.monotonic() - 1
    assert len(supervisor.silent()) == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert supervisor._running == {}


async def test_a_loop_that_failed_has_no_metrics_and_a_cluster_that_is_gone_leaves_nothing(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that was left by a loop that failed was told as if it went on."""
    loop = _Failing(Corrupt("two rows of one version"))
    monkeypatch.setattr(loop, "state", State(7, PartitionTable.empty(8), 1, 0, 0.0), raising=False)
    task = asyncio.create_task(supervisor._guard(KEY, cast("ClusterLoop", loop)))
    supervisor._loops[KEY], supervisor._tasks[KEY] = cast("ClusterLoop", loop), task
    supervisor._uids[KEY], supervisor._failures[KEY] = "uid", "two rows of one version"
    await asyncio.sleep(0.01)
    assert loop.closed
    assert not task.done()
    assert supervisor.states() == {}
    assert KEY in supervisor._pauses
    await supervisor._match()
    known = (supervisor._loops, supervisor._tasks, supervisor._uids, supervisor._failures, supervisor._pauses)
    assert all(KEY not in each for each in known)


async def test_a_cluster_that_was_never_valid_says_so_once() -> None:
    """It was only a line in the operator's log: the cluster looked as if no operator watched it."""
    api, namespace = simulated_api(), NAMESPACE
    watching = Supervisor(api, cast("Any", None), cast("Any", None))
    spec = {"members": 3, "storage": {"size": "a lot"}}
    made = await api.create(CLUSTERS, namespace, {"metadata": {"name": "demo"}, "spec": spec})
    watching.cache.put(CLUSTERS, made)
    await watching._match()
    shown = await api.get(CLUSTERS, namespace, "demo")
    assert kstatus(shown) == "Failed"
    assert "spec.storage.size is 'a lot'" in shown["status"]["message"]
    await watching._match()
    assert await api.get(CLUSTERS, namespace, "demo") == shown
    assert watching.states() == {}


TABLE = Corrupt("table head: the cluster uses format 99; use the version that wrote it", "UNKNOWN_FORMAT")


class Stopping:
    """A supervisor of one cluster, whose status an earlier master wrote with epoch 3."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def sleep(seconds: float) -> None: ...

        monkeypatch.setattr(tested.asyncio, "sleep", sleep)
        self.api = simulated_api()
        settings = Settings("member:1", "spark:1", (), "", "test")
        self.supervisor = Supervisor(self.api, cast("Any", None), settings)
        self.key = (NAMESPACE, "demo")

    async def begin(self) -> None:
        spec = {"members": 3, "storage": {"size": "1Gi"}}
        await self.api.create(CLUSTERS, NAMESPACE, {"metadata": {"name": "demo"}, "spec": spec})
        await self.show(3)
        stored = await self.stored()
        cluster, watching = TabletCluster.read(stored), self.supervisor
        assert isinstance(cluster, TabletCluster)
        watching.cache.put(CLUSTERS, stored)
        watching._epochs[self.key] = cluster.status.epoch
        watching._objects[self.key] = KubernetesClusterObjects(
            self.api, watching.cache, watching._settings, cluster, lambda _: NOON
        )

    async def stored(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.api.get(CLUSTERS, NAMESPACE, "demo")
        return found

    async def show(self, epoch: int) -> None:
        """Write the status as a master of a later build does."""
        facts = {"epoch": epoch, "phase": "Running", "laterField": 7, "observedGeneration": 1}
        ready = TabletClusterStatus().conditions
        ready = set_condition(ready, ConditionType.READY, True, "AsDesired", "", generation=1, now=NOON)
        facts["conditions"] = [each.to_dict() for each in ready]
        await self.api.patch_status(CLUSTERS, NAMESPACE, "demo", facts)

    async def fail(self, error: Exception) -> dict[str, Any]:
        await self.supervisor._guard(self.key, cast("ClusterLoop", _Failing(error)))
        return await self.stored()


@pytest.fixture
async def stopping(monkeypatch: pytest.MonkeyPatch) -> Stopping:
    found = Stopping(monkeypatch)
    await found.begin()
    assert kstatus(await found.stored()) == "Current"
    return found


async def test_a_table_of_a_later_release_stalls_the_cluster(stopping: Stopping) -> None:
    shown = await stopping.fail(TABLE)
    assert kstatus(shown) == "Failed"
    assert "the cluster uses format 99" in shown["status"]["message"]
    assert (shown["status"]["laterField"], shown["status"]["epoch"]) == (7, 3)
    again = await stopping.fail(TABLE)
    assert again == shown, "it is written once"


async def test_a_failure_that_a_restart_may_end_stalls_the_cluster_when_it_is_repeated(
    stopping: Stopping,
) -> None:
    assert [kstatus(await stopping.fail(ValueError("x"))) for _ in range(2)] == ["InProgress", "Failed"]


@pytest.mark.parametrize("error", [TABLE, ValueError("x")])
async def test_the_status_of_a_later_master_stays(stopping: Stopping, error: Exception) -> None:
    """This process stood still, and another one got the Lease."""
    await stopping.show(4)
    assert kstatus(await stopping.fail(error)) == "Current"


@pytest.mark.parametrize("error", [Deposed("epoch 9"), NameTaken(["ConfigMap demo-table"])])
async def test_failures_that_say_who_else_writes_leave_the_status(
    stopping: Stopping, error: Exception
) -> None:
    assert kstatus(await stopping.fail(error)) == "Current"


async def test_a_supervisor_that_ends_starts_no_loop_again(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would raise the epoch of a table that another process leads by then."""
    stored = {"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": "uid"}, "spec": {}}
    monkeypatch.setattr(supervisor.cache, "all", lambda _kind: [stored])
    started: list[object] = []

    async def start(*words: object) -> None:
        started.append(words)

    monkeypatch.setattr(supervisor, "_start", start)
    await supervisor._match()
    assert len(started) == 1
    await supervisor.close()
    await supervisor._match()
    assert len(started) == 1


async def test_what_a_loop_logs_names_its_cluster(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[dict[str, Any]] = []

    class Loop(_Loop):
        async def run(self) -> None:
            named.append(logs.fields_now())
            await asyncio.Event().wait()

        async def close(self) -> None: ...

    forgotten: list[tuple[Any, ...]] = []
    monkeypatch.setattr(logs, "follow_cluster", lambda *given: forgotten.append(given))
    monkeypatch.setattr(supervisor, "_loop", lambda cluster: Loop())
    meta = {"namespace": "ns", "name": "demo", "uid": "u", "resourceVersion": "1"}
    stored = {"metadata": meta, "spec": {"members": 1, "storage": {"size": "1Gi"}}}
    supervisor.cache.put(CLUSTERS, stored)
    await supervisor._match()
    await asyncio.sleep(0)
    assert named == [{"namespace": "ns", "cluster": "demo"}]
    assert logs.fields_now() == {}
    await supervisor.close()
    assert forgotten == [("ns", "demo", None)]
