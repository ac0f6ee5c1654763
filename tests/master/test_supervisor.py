"""Loops are let go of, whatever they do with a cancellation."""

import asyncio
import re
import time
from typing import Any, cast

import pytest

from stele.adapters.kubernetes.api import CLUSTERS
from stele.core.control.invariants import BrokenInvariant
from stele.core.control.state import ClusterEvent, State
from stele.core.table.table import PartitionTable
from stele.errors import Corrupt
from stele.master import supervisor as tested
from stele.master.loop import ClusterLoop, Deposed
from stele.master.metrics import RECONCILE_ERRORS
from stele.master.supervisor import DEPOSED_SECONDS, FAILED_SECONDS, FAILED_SECONDS_MAX, Supervisor
from tests.contract.conftest import simulated_api
from tests.fakes.api import NAMESPACE
from tests.fakes.kstatus import kstatus

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
