"""A table that contradicts itself is neither taken over nor stored."""

import pytest

from stele.adapters.kubernetes.table_store import table_snapshot
from stele.core.control import decide as master
from stele.core.control.decide import decide
from stele.core.control.failure_detector import Timing
from stele.core.control.invariants import BrokenInvariant
from stele.core.control.state import Observation, State
from stele.core.control.table_view import TableView
from stele.core.table.ids import VERSION_MAX
from stele.core.table.table import Member, Partition, PartitionTable
from stele.errors import Conflict, Corrupt, Refused
from stele.master.loop import ClusterLoop
from stele.wire.configmap import Head
from tests.fakes.spec import desired_spec
from tests.master.harness import Harness

MEMBERS = (Member(0, "m-0", "u-0", ""), Member(1, "m-1", "u-1", ""), Member(2, "m-2", "u-2", "", lite=True))
HEAD = Head(1, "Active", 1, 2, 1, 3, 0, 0, MEMBERS)
WRONG = [
    (Partition(4, (7,)), "names member index 7, which is not in the member dictionary"),
    (Partition(4, (0, 2)), "lite"),
    (Partition(4, (0, 0)), "twice"),
]


@pytest.mark.parametrize(("row", "reason"), WRONG)
def test_rows_that_contradict_the_dictionary_are_not_taken_over(row: Partition, reason: str) -> None:
    assert table_snapshot(HEAD, [Partition(4, (0, 1))]).table.partitions == (Partition(4, (0, 1)),)
    with pytest.raises(Corrupt, match=f"partition 0 .*{reason}"):
        table_snapshot(HEAD, [row])


@pytest.mark.parametrize(("row", "reason"), [*WRONG, (Partition(3, (0,)), "versions only grow")])
def test_a_decision_that_breaks_a_rule_is_not_stored(
    row: Partition, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PartitionTable((Partition(3, (0, 1)),), {member.index: member for member in MEMBERS})
    state = State(1, table, 1, 3, 0.0, recovered=True)
    desired = desired_spec(members=2, replicas=2, timing=Timing(1.0, 3.0, 60.0), paused=True)
    monkeypatch.setattr(master, "repair", lambda state, *_: state.table.staged.update({0: row}))
    with pytest.raises(Corrupt, match=f"partition 0 .*{reason}"):
        decide(state, Observation(0.0, desired, ()))
    assert state.table.stored is table


def test_the_last_version_is_not_overrun() -> None:
    table = PartitionTable((Partition(VERSION_MAX - 1, (0, 1)),), {})
    with pytest.raises(Refused, match=r"VERSION_LIMIT: partition 0 would get version 21474836"):
        TableView(1, table).next_version(0)


async def test_a_conflict_inside_a_decision_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the conflict of a write it would end the leadership each second, and users would learn nothing."""

    def conflicts(*_: object) -> None:
        raise Conflict("partition 0: MOVE does not apply to the row")

    monkeypatch.setattr(master, "start", conflicts)
    harness = Harness()
    with pytest.raises(BrokenInvariant, match=r"a decision failed: .*MOVE does not apply"):
        await harness.until_quiet()
    monkeypatch.setattr(ClusterLoop, "step_down", None)
    with pytest.raises(BrokenInvariant):
        await harness.loop.run()
