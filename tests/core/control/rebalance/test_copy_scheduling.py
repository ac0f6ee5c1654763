"""Where copies are read from, how bandwidth and space are shared, and what is counted."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.control.commands import CopyItem, ExchangeReply, OpId, Reason, Stats, TabletReport
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.operations.copy_session import CopySession, Engine, Stage
from stele.core.control.operations.move import MigrationOperation, begin
from stele.core.control.rebalance.copy_scheduling import (
    COPIES_PER_MEMBER_MAX,
    SHORT_SECONDS,
    Sources,
    Space,
    expected_bytes,
    forget_short,
    has_room,
    note_short,
    share_bandwidth,
)
from stele.core.control.state import State
from stele.core.copy.pacing import BURST_SECONDS, SPACE_MARGIN_BYTES, Pace, lack_of_space
from stele.core.placement.migration import Migration, Type
from stele.core.table.table import Member, Partition, PartitionTable

MEMBERS = 5
SIZE = 1000


def reply(free: int = -1) -> ExchangeReply:
    return ExchangeReply("OK", "", "u", "c", 1, 1, 0, 1, stats=Stats(disk_free_bytes=free))


def state_of(*rows: tuple[int, ...], free: int = -1) -> State:
    """Every member of a row holds its tablet, READY and of SIZE bytes."""
    members = {n: Member(n, f"demo-{n}", f"uuid-{n}", f"10.0.0.{n}") for n in range(MEMBERS)}
    state = State(1, PartitionTable(tuple(Partition(1, row) for row in rows), members), 1, MEMBERS, 0.0)
    for index in members:
        liveness = state.membership.liveness[index] = MemberLiveness(index, 0.0, report=reply(free))
        for number, row in enumerate(rows):
            if index in row:
                liveness.tablets[number] = tablet(number)
    return state


def tablet(number: int, state: str = "READY", size: int = SIZE) -> TabletReport:
    return TabletReport(number, state, 1, OpId(1, 1), OpId(1, 1), 1, size)  # type: ignore[arg-type]


def copy_to(state: State, number: int, destination: int) -> MigrationOperation:
    """A migration under way that makes one more replica."""
    row = state.table.partitions[number]
    index = len(row.replicas)
    migration = Migration(number, Type.COPY, None, -1, -1, destination, -1, index)
    running = begin(f"m{number}", migration, row, 0.0)
    state.operations.begin(running)
    return running


def wave(source: int, destination: int, stage: Stage = Stage.COPY) -> CopySession:
    return CopySession(f"s{source}-{destination}", source, destination, {}, {}, 0.0, stage=stage)


# -- sources


def test_a_backup_is_read_and_not_the_owner() -> None:
    state = state_of((0, 1))
    assert Sources(state, frozenset()).choose(copy_to(state, 0, 4)) == 1


@pytest.mark.parametrize("trouble", ["gone", "broken", "copying", "silent"])
def test_the_owner_is_read_when_no_backup_is_ready(trouble: str) -> None:
    state = state_of((0, 1))
    if trouble == "broken":
        del state.membership.liveness[1].tablets[0]
    elif trouble == "copying":
        state.membership.liveness[1].tablets[0] = tablet(0, "COPYING")
    elif trouble == "silent":
        del state.membership.liveness[1]
    gone = frozenset({1} if trouble == "gone" else ())
    assert Sources(state, gone).choose(copy_to(state, 0, 4)) == 0


def test_a_copy_that_was_too_old_is_made_from_the_owner() -> None:
    state = state_of((0, 1))
    running = copy_to(state, 0, 4)
    running.copies = 1
    assert Sources(state, frozenset()).choose(running) == 0


def test_the_choice_stays_while_it_is_good_and_moves_on_when_it_is_not() -> None:
    state = state_of((0, 1, 2))
    running = copy_to(state, 0, 4)
    assert Sources(state, frozenset()).choose(running) == 1
    assert Sources(state, frozenset()).choose(running) == 1
    assert Sources(state, frozenset({1})).choose(running) == 2
    assert Sources(state, frozenset({1, 2})).choose(running) == 0
    assert Sources(state, frozenset({2})).choose(running) == 1


@given(st.integers(1, 40))
def test_the_load_is_spread_over_the_backups(count: int) -> None:
    state = state_of(*((0, 1, 2, 3) for _ in range(count)))
    sources = Sources(state, frozenset())
    load = Counter(sources.choose(copy_to(state, number, 4)) for number in range(count))
    assert set(load) <= {1, 2, 3}
    assert max(load.values()) - min(load[member] for member in (1, 2, 3)) <= 1


# -- limits


def test_a_member_is_read_and_written_by_a_few_waves_only() -> None:
    read = [wave(0, each) for each in range(1, COPIES_PER_MEMBER_MAX + 1)]
    assert not has_room(read, 0, 9)
    assert has_room(read, 9, 1)
    written = [wave(each, 0) for each in range(1, COPIES_PER_MEMBER_MAX + 1)]
    assert not has_room(written, 9, 0)
    assert has_room([wave(0, 1, Stage.INGEST)] * 9, 0, 2)


pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda p: p[0] != p[1]), max_size=12)


@given(pairs, st.integers(1 << 20, 1 << 32))
def test_no_member_reads_and_writes_more_than_its_limit(
    given_pairs: list[tuple[int, int]], limit: int
) -> None:
    waves = [wave(*pair) for pair in given_pairs]
    share_bandwidth(waves, limit)
    rates: Counter[int] = Counter()
    for each in waves:
        assert each.bytes_per_second > 0
        rates[each.source] += each.bytes_per_second
        rates[each.destination] += each.bytes_per_second
    assert all(rate <= limit for rate in rates.values())
    if len(waves) == 1:
        assert waves[0].bytes_per_second == limit


def test_without_a_limit_there_is_no_rate() -> None:
    waves = [wave(0, 1)]
    share_bandwidth(waves, 5 << 20)
    share_bandwidth(waves, 0)
    assert waves[0].bytes_per_second == 0


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=50), st.integers(1000, 1_000_000))
def test_a_pace_lets_no_more_go_than_its_rate(sizes: list[int], rate: int) -> None:
    pace, now, sent = Pace(rate), 100.0, 0
    for size in sizes:
        now += pace.wait_seconds(size, now)
        sent += size
        assert sent <= rate * (now - 100.0 + BURST_SECONDS) + 1
    assert now - 100.0 <= sum(sizes) / rate


def test_a_pace_without_a_rate_never_waits() -> None:
    assert Pace(0).wait_seconds(1 << 40, 0.0) == 0.0


# -- space


def test_a_copy_needs_its_bytes_and_a_margin() -> None:
    assert lack_of_space(10, SPACE_MARGIN_BYTES + 10) == ""
    assert "the copy needs 11 bytes" in lack_of_space(11, SPACE_MARGIN_BYTES + 10)


def admitted(state: State, number: int, destination: int = 4) -> bool:
    row = state.table.partitions[number].replicas
    migration = Migration(number, Type.COPY, None, -1, -1, destination, -1, len(row))
    return Space(state).admit(migration) is None


def test_a_migration_starts_when_its_destination_has_room() -> None:
    assert admitted(state_of((0,), free=SPACE_MARGIN_BYTES + SIZE), 0)
    assert not admitted(state_of((0,), free=SPACE_MARGIN_BYTES + SIZE - 1), 0)


def test_what_is_on_its_way_is_counted_once() -> None:
    state = state_of((0,), (0,), free=SPACE_MARGIN_BYTES + 2 * SIZE)
    running = copy_to(state, 0, 4)
    assert admitted(state, 1)
    state.membership.liveness[4].report = reply(SPACE_MARGIN_BYTES + 2 * SIZE - 1)
    assert not admitted(state, 1)
    # Its wave tells the bytes, and how many of them are on the volume already.
    made = wave(0, 4)
    state.operations.begin(made)
    made.items, made.partitions, running.session = (CopyItem(0, 1, 1, SIZE),), {0: running.id}, made.id
    made.copied_bytes = SIZE // 2
    assert admitted(state, 1)


def test_the_refusal_says_what_to_do() -> None:
    state = state_of((0,), free=5)
    refusal = Space(state).admit(Migration(0, Type.COPY, None, -1, -1, 4, -1, 1))
    assert refusal is not None
    assert (refusal.reason, refusal.partition) == ("NO_SPACE", 0)
    assert "demo-4 has 5 bytes free" in refusal.detail
    assert "enlarge its volume" in refusal.detail


@pytest.mark.parametrize("why", ["rejoins", "does not tell", "holds nothing"])
def test_some_copies_never_wait_for_space(why: str) -> None:
    state = state_of((0,), free=-1 if why == "does not tell" else 0)
    if why == "rejoins":
        state.membership.liveness[4].tablets[0] = tablet(0)
    elif why == "holds nothing":
        state.membership.liveness[0].tablets[0] = tablet(0, size=0)
    assert admitted(state, 0)
    assert expected_bytes(state, 0, 4) == (SIZE if why == "does not tell" else 0)


def test_lack_of_space_is_said_once_and_again_when_it_was_over() -> None:
    state = state_of((0,), free=0)
    refusal = Space(state).admit(Migration(0, Type.COPY, None, -1, -1, 4, -1, 1))
    assert refusal is not None
    for now in (1.0, 2.0, 1.0 + SHORT_SECONDS):
        forget_short(state, now)
        note_short(state, 4, refusal, now)
    assert [each.reason for each in state.events] == ["NoSpace"]
    forget_short(state, 2.0 + 2 * SHORT_SECONDS)
    assert state.copies.short == {}
    note_short(state, 4, refusal, 200.0)
    assert [each.warning for each in state.events] == [True, True]


def test_a_wave_counts_once() -> None:
    from stele.core.control.rebalance.copy_scheduling import note_end

    state = state_of((0,))
    made = wave(0, 4)
    made.engine, made.copied_bytes, made.tasks, made.retries = Engine.SPARK, 70, 4, 1
    made.fail(Reason("DRIVER", "it ended"))
    for now in (1.0, 2.0):
        note_end(state, made, now)
    (copied,) = state.copies.copied.values()
    assert (copied.bytes_copied, copied.tasks, copied.retries, copied.failures) == (70, 4, 1, 1)
