"""Copies as the master drives them: from whom, how fast, into what space, by whom, and what it shows."""

from datetime import UTC, datetime

import pytest

from stele.core.control.commands import Result
from stele.core.control.operations.copy_session import SPARK_PATIENCE_SECONDS, Engine
from stele.core.control.retries import RETRY_SECONDS_MAX
from stele.core.control.state import RebalanceProgress
from stele.core.copy.pacing import SPACE_MARGIN_BYTES
from stele.master import plan_status
from stele.master import status as facts
from stele.master.metrics import copy_metrics
from stele.master.view import View
from stele.model.conditions import Condition
from stele.model.rebalance import TabletRebalanceStatus
from tests.fakes.copier import Copier
from tests.fakes.members import FakeMember
from tests.master.harness import Harness, formed
from tests.master.test_statuses import cluster, condition, rebalance

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


async def with_copier(
    outcome: str = "DONE", engine: str = "Spark", **desired: object
) -> tuple[Harness, Copier]:
    harness = Harness(members=3, partitions=12, engine=engine, **desired)
    copier = Copier(harness, outcome)
    await harness.loop.close()
    harness.start_master(copier=copier)
    await harness.until_quiet()
    return harness, copier


def view(harness: Harness) -> View:
    return View(harness.state, harness.world.wanted, harness.clock, NOON)


def shown(harness: Harness, record: RebalanceProgress) -> TabletRebalanceStatus:
    return plan_status.rebalance_status(record, view(harness), rebalance())


def stalled(harness: Harness) -> Condition:
    return condition(facts.cluster_status(cluster(), view(harness), "p"), "Stalled")


def events(harness: Harness, reason: str) -> list[str]:
    return [each.message for each in harness.world.events if each.reason == reason]


# -- sources


async def test_new_members_are_filled_from_backups_and_owners_are_left_alone() -> None:
    harness, copier = await with_copier()
    harness.change_spec(members=4)
    before = harness.table().partitions
    await harness.until_quiet()
    harness.check_balanced(4, 2)
    assert copier.waves
    for wave in copier.waves.values():
        for item in wave.items:
            assert wave.source in before[item.partition].replicas[1:], (wave, before[item.partition])


# -- space


async def test_copies_wait_for_space_and_begin_by_themselves_once_there_is_some() -> None:
    harness = await formed()
    for member in harness.world.volumes.values():
        member.free_bytes = SPACE_MARGIN_BYTES
    harness.change_spec(members=4)
    for _ in range(40):
        await harness.tick()
        harness.world.volumes[max(harness.world.volumes)].free_bytes = SPACE_MARGIN_BYTES
    record = harness.state.rebalance.progress
    assert record is not None
    assert (harness.state.operations.migrations, harness.state.operations.sessions, record.failed) == (
        {},
        {},
        0,
    )
    assert 3 not in {member for row in harness.table().partitions for member in row.members}
    status = shown(harness, record)
    assert {each.reason for each in status.refusals} == {"NO_SPACE"}
    assert "demo-3 has" in status.refusals[0].message
    assert status.refusals_total == len(status.refusals) > 0
    assert len(events(harness, "NoSpace")) == 1
    assert (stalled(harness).status.value, stalled(harness).reason) == ("True", "NoSpace")
    # Nothing is under way: the master sleeps between its heartbeats.
    assert not await harness.tick()
    harness.world.volumes[3].free_bytes = SPACE_MARGIN_BYTES + (1 << 30)
    await harness.until_quiet()
    harness.check_balanced(4, 2)
    assert shown(harness, record).refusals == ()
    assert stalled(harness).status.value == "False"


async def test_a_little_space_is_used_by_a_few_copies_at_a_time() -> None:
    harness = await formed()
    size = max(t.bytes for t in harness.state.membership.liveness[0].tablets.values())
    harness.change_spec(members=4)
    for _ in range(5):
        await harness.tick()
        if 3 in harness.world.volumes:
            harness.world.volumes[3].free_bytes = SPACE_MARGIN_BYTES + 2 * size
    most = 0
    for _ in range(60):
        await harness.tick()
        state = harness.state
        coming = [each for each in state.operations.migrations.values() if each.destination == 3]
        most = max(most, len(coming))
    assert 1 <= most <= 2


async def test_as_many_are_copied_at_once_as_the_log_lasts_for() -> None:
    """Each copy takes a second when it is alone, and 10 bytes are written to it then."""
    harness = await formed()
    size = max(t.bytes for t in harness.state.membership.liveness[0].tablets.values())
    for member in harness.world.volumes.values():
        member.written_bytes_per_second = 10
    harness.change_spec(members=4, bandwidth_per_member=size, log_space=60)
    most = 0
    for _ in range(400):
        await harness.tick()
        state = harness.state
        most = max(most, sum(each.migration.copies for each in state.operations.migrations.values()))
    assert 1 <= most <= 3, "each owner may keep 30 bytes, and each of four copies would take four seconds"
    harness.check_balanced(4, 2)


async def test_a_copy_that_cannot_end_says_so_and_what_helps() -> None:
    harness = await formed(engine="Direct")
    for member in harness.world.volumes.values():
        member.written_bytes_per_second = 1000
        member.log_reaches = False
    harness.change_spec(members=4, bandwidth_per_member=1, log_space=1000)
    for _ in range(2000):
        await harness.tick()
        if stalled(harness).reason == "CopyCannotEnd":
            break
    text = stalled(harness).message
    assert "bytes are written to it while its" in text
    assert "raise spec.migration.bandwidthPerMember or logSpacePerMember" in text
    record = harness.state.rebalance.progress
    assert record is not None
    assert any("copies of it have failed in a row" in each.detail for each in record.failures.values())
    for member in harness.world.volumes.values():
        member.log_reaches = True
    harness.change_spec(log_space=1 << 30)
    await harness.until_quiet(ticks=4000)
    harness.check_balanced(4, 2)
    assert stalled(harness).status.value == "False"


async def test_no_copy_is_made_in_vain_after_one_that_came_too_late() -> None:
    """A destination takes in one copy of a migration; the next one needs another migration."""
    harness = await formed(engine="Direct")
    for member in harness.world.volumes.values():
        member.log_reaches = False
    harness.change_spec(members=4)
    sessions: dict[str, set[str]] = {}
    for _ in range(600):
        await harness.tick()
        for session in harness.state.operations.sessions.values():
            for id in session.partitions.values():
                sessions.setdefault(id, set()).add(session.id)
    assert len(sessions) > 3, "migrations are tried again"
    assert {len(each) for each in sessions.values()} == {1}
    failures = harness.state.rebalance.finished[-1].failures.values()
    assert "the owner's log did not reach back" in "".join(each.detail for each in failures)


async def test_a_wave_that_turns_out_too_large_is_rolled_back() -> None:
    harness = await formed(engine="Direct")
    harness.change_spec(members=4)
    found: set[str] = set()
    for _ in range(200):
        await harness.tick()
        if harness.state.operations.migrations:
            harness.world.volumes[3].free_bytes = SPACE_MARGIN_BYTES
        record = harness.state.rebalance.progress
        records = [*harness.state.rebalance.finished, *([] if record is None else [record])]
        found |= {failure.reason for each in records for failure in each.failures.values()}
        if found:
            break
    assert found == {"NO_SPACE"}
    harness.world.volumes[3].free_bytes = -1
    await harness.until_quiet(ticks=800)
    harness.check_balanced(4, 2)


# -- engines


@pytest.mark.parametrize(
    "said",
    ["", ": 1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"],
)
async def test_executors_without_a_place_mean_direct_with_the_reason_and_an_event(said: str) -> None:
    text = f"NO_EXECUTORS: no executor could be scheduled on the destination's node for 30 s{said}"
    harness, copier = await with_copier(text)
    await harness.apply(members=4)
    harness.check_balanced(4, 2)
    assert copier.waves
    (record,) = harness.state.rebalance.finished
    (copied,) = record.destinations.values()
    assert (copied.engine, copied.engine_reason) == (
        Engine.DIRECT,
        f"Spark failed for this destination: {text}",
    )
    assert (record.failed, record.bytes_by_spark, copied.failures > 0) == (0, 0, True)
    assert len(copier.waves) > 1
    assert events(harness, "SparkFailed") == [f"copies to demo-3 go on without Spark: {text}"]
    status = shown(harness, record)
    assert status.destinations[0].engine_reason.endswith(f"for 30 s{said}")


@pytest.mark.parametrize(("times", "rolled_back"), [(1, 0), (100, 1)])
async def test_files_that_are_damaged_at_the_destination_are_copied_again_and_nobody_is_blamed(
    monkeypatch: pytest.MonkeyPatch, times: int, rolled_back: int
) -> None:
    harness, copier = await with_copier("DONE")
    damaged = Result("CORRUPT", "a.sst has 7 bytes, which differs from its manifest")
    answers, plain = [damaged] * times, FakeMember._Ingest
    monkeypatch.setattr(FakeMember, "_Ingest", lambda self, c: answers.pop() if answers else plain(self, c))
    harness.change_spec(members=4)
    if rolled_back:
        await harness.ticks(100)
        first = harness.state.rebalance.finished[0]
        assert {each.reason for each in first.failures.values()} == {"CORRUPT"}
        answers.clear()
        await harness.tick(RETRY_SECONDS_MAX)
    await harness.until_quiet()
    harness.check_balanced(4, 2)
    assert {wave.engine for wave in copier.waves.values()} == {Engine.SPARK}
    assert harness.state.rebalance.finished[-1].failed == 0
    assert events(harness, "SparkFailed") == []
    assert events(harness, "CopySpoiled")[0].endswith(f"copied again: CORRUPT: {damaged.detail}")


@pytest.mark.parametrize(("threshold", "by_spark"), [(1, True), (1 << 40, False)])
async def test_spark_copies_when_enough_is_to_be_copied_at_once(threshold: int, by_spark: bool) -> None:
    harness, copier = await with_copier(engine="Auto", spark_threshold_bytes=threshold, parallel_per_member=4)
    await harness.apply(members=4)
    harness.check_balanced(4, 2)
    (record,) = harness.state.rebalance.finished
    assert bool(copier.waves) == by_spark
    assert record.engine is not None
    assert record.engine.value == ("Spark" if by_spark else "Direct")
    assert "bytes are to be copied at once" in record.engine_reason
    assert record.bytes_by_spark == (record.bytes_copied if by_spark else 0)
    assert record.bytes_copied > 0


async def test_what_catches_up_from_the_log_is_not_counted_as_something_to_copy() -> None:
    harness, copier = await with_copier(engine="Auto", spark_threshold_bytes=1)
    harness.kill(1)
    await harness.ticks(10)
    harness.revive(1)
    await harness.until_quiet()
    assert copier.waves == {}


async def test_spark_is_tried_again_after_a_while() -> None:
    harness, copier = await with_copier("DRIVER: it ended")
    await harness.apply(members=4)
    copier.outcome, tried = "DONE", len(copier.waves)
    harness.clock += SPARK_PATIENCE_SECONDS
    await harness.apply(members=3)
    await harness.apply(members=4)
    assert len(copier.waves) > tried
    assert harness.state.rebalance.finished[-1].bytes_by_spark > 0


async def test_a_driver_counts_as_warm_until_a_copy_by_spark_fails() -> None:
    harness, _ = await with_copier("DRIVER: it ended")
    used = harness.state.copies.spark_used_seconds
    used.update(dict.fromkeys(range(4), harness.clock))
    await harness.apply(members=4)
    assert set(used) == {0, 1, 2}


@pytest.mark.parametrize("away", [True, False])
async def test_no_driver_counts_as_warm_once_the_copier_was_away(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    harness, copier = await with_copier()
    await harness.apply(members=4)
    used = harness.state.copies.spark_used_seconds
    assert 3 in used
    used.update(dict.fromkeys(range(4), harness.clock))
    if away:
        monkeypatch.setattr(copier, "problem", lambda: "the copier pod is not ready")
        await harness.tick()
        monkeypatch.undo()
    await harness.apply(members=3, engine="Auto")
    record = harness.state.rebalance.finished[-1]
    drivers = {each.engine_reason.rpartition(" for ")[2] for each in record.destinations.values()}
    assert drivers == {"a cold driver" if away else "a warm driver"}


# -- sessions


async def test_a_session_is_renewed_as_long_as_it_is_copied() -> None:
    harness, _ = await with_copier("RUNNING")
    harness.change_spec(members=4)
    await harness.ticks(20)
    (session, wave), *_ = harness.state.operations.sessions.items()
    source = harness.world.volumes[wave.source]
    before = sum(each.session == session for each in source.renewals)
    assert before >= 1
    await harness.ticks(50, 1.0)
    assert sum(each.session == session for each in source.renewals) >= before + 2


@pytest.mark.parametrize("how", ["ended", "restarted"])
async def test_a_lost_session_is_rolled_back_and_copied_again(how: str) -> None:
    harness, copier = await with_copier("RUNNING")
    harness.change_spec(members=4)
    await harness.ticks(20)
    wave = next(iter(harness.state.operations.sessions.values()))
    copier.outcome = "DONE"
    copier.told.clear()
    if how == "ended":
        harness.world.volumes[wave.source].sessions.clear()
    else:
        harness.kill(wave.source)
        harness.revive(wave.source)
    await harness.until_quiet(ticks=1200)
    harness.check_balanced(4, 2)
    if how == "ended":
        failures = [each for record in harness.state.rebalance.finished for each in record.failures.values()]
        assert {each.reason for each in failures} == {"SESSION_LOST"}
        assert events(harness, "SparkFailed") == []
    assert all(not each.sessions and not each.staged for each in harness.world.volumes.values())


async def test_a_new_master_ends_what_the_one_before_left_at_sources_and_in_staging() -> None:
    harness, _ = await with_copier("RUNNING")
    harness.change_spec(members=4)
    await harness.ticks(20)
    assert any(each.sessions for each in harness.world.volumes.values())
    harness.world.volumes[3].staged["s1-99"] = {}
    await harness.restart()
    await harness.until_quiet(ticks=1200)
    harness.check_balanced(4, 2)
    assert all(not each.sessions and not each.staged for each in harness.world.volumes.values())


async def test_migrations_wait_for_their_turn_to_be_copied_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stele.core.control.rebalance.copy_scheduling.COPIES_PER_MEMBER_MAX", 1)
    harness, copier = await with_copier("RUNNING")
    harness.change_spec(members=4)
    await harness.ticks(40)
    (wave,) = harness.state.operations.sessions.values()
    waiting = [each for each in harness.state.operations.migrations.values() if each.session != wave.id]
    assert waiting
    await harness.ticks(150, 1.0)
    record = harness.state.rebalance.progress
    assert record is not None
    assert (record.failed, record.failures) == (0, {})
    assert list(harness.state.operations.sessions) == [wave.id]
    copier.outcome = "DONE"
    await harness.until_quiet(ticks=1200)
    harness.check_balanced(4, 2)


# -- bandwidth


async def test_the_rates_of_all_sessions_keep_every_member_within_its_limit() -> None:
    limit = 100 << 20
    harness, _ = await with_copier("RUNNING", bandwidth_per_member=limit)
    harness.change_spec(members=6)
    for _ in range(40):
        await harness.tick()
        rates: dict[int, int] = {}
        for wave in harness.state.operations.sessions.values():
            for member in (wave.source, wave.destination):
                rates[member] = rates.get(member, 0) + wave.bytes_per_second
        assert all(rate <= limit for rate in rates.values())
    waves = harness.state.operations.sessions.values()
    assert len({(wave.source, wave.destination) for wave in waves}) > 1
    for wave in waves:
        told = [r for r in harness.world.volumes[wave.source].renewals if r.session == wave.id]
        assert told[-1].bytes_per_second == wave.bytes_per_second > 0
    harness.change_spec(bandwidth_per_member=0)
    await harness.ticks(4)
    told = [each for member in harness.world.volumes.values() for each in member.renewals[-1:]]
    assert {each.bytes_per_second for each in told} == {0}


# -- what is shown


async def test_a_plan_shows_what_is_copied_to_whom() -> None:
    harness, _ = await with_copier()
    await harness.apply(members=5)
    record = next(each for each in harness.state.rebalance.finished if each.destinations)
    status = shown(harness, record)
    assert [each.member for each in status.destinations] == sorted(
        (each.member for each in status.destinations),
        key=lambda name: -next(e.bytes_planned for e in status.destinations if e.member == name),
    )
    assert {each.member for each in status.destinations} <= {f"demo-{n}" for n in range(5)}
    assert status.destinations_total == len(status.destinations) > 0
    for each in status.destinations:
        assert (each.engine, each.engine_reason) == ("Spark", "spec.migration.engine is Spark")
        assert each.bytes_planned > 0
        assert each.tasks >= 4
        assert each.retries * 4 == each.tasks
        assert float(each.megabytes_per_second) >= 0
    assert sum(each.bytes_copied for each in status.destinations) == status.bytes_copied > 0


async def test_a_member_that_left_keeps_its_name_in_what_was_copied_to_it() -> None:
    harness, _ = await with_copier()
    await harness.apply(members=4)
    record = next(each for each in harness.state.rebalance.finished if each.destinations)
    await harness.apply(members=3)
    assert 3 not in harness.state.table.members
    assert [each.member for each in shown(harness, record).destinations] == ["demo-3"]
    metrics = copy_metrics({("ns", "demo"): harness.state})
    names = {sample.labels["destination"] for metric in metrics for sample in metric.samples}
    assert names == {"demo-0", "demo-1", "demo-2", "demo-3"}


async def test_what_is_under_way_is_shown_too_and_metrics_agree() -> None:
    harness, _ = await with_copier("RUNNING")
    harness.change_spec(members=4)
    await harness.ticks(30)
    record = harness.state.rebalance.progress
    assert record is not None
    (shown_now,) = shown(harness, record).destinations
    assert shown_now.bytes_copied > 0
    assert shown_now.tasks >= 4
    metrics = {
        (sample.name, sample.labels["destination"], sample.labels["engine"]): sample.value
        for metric in copy_metrics({("ns", "demo"): harness.state})
        for sample in metric.samples
    }
    assert metrics["stele_copied_bytes_total", "demo-3", "Spark"] == shown_now.bytes_copied
    assert metrics["stele_copy_tasks_total", "demo-3", "Spark"] == shown_now.tasks
    assert metrics["stele_copy_failures_total", "demo-3", "Spark"] == 0
