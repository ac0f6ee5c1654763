"""Each check of `checks.py` sees what is broken on purpose."""

from collections.abc import Callable

import pytest

from stele.core.control.commands import Row
from tests.fakes.members import Copy, Tablet
from tests.master.checks import check_state
from tests.master.harness import Harness, formed


def slot_empty(harness: Harness) -> None:
    harness.change_spec(replicas=3)


def member_gone(harness: Harness) -> None:
    harness.kill(0)


def table_behind(harness: Harness) -> None:
    harness.world.volumes[1].rows[0] = Row(0, 0, ())


def list_behind(harness: Harness) -> None:
    harness.world.volumes[1].member_list_version -= 1


def leaked_tablet(harness: Harness) -> None:
    harness.world.volumes[2].tablets[0] = Tablet()


def leaked_copy(harness: Harness) -> None:
    harness.world.volumes[2].copies[0] = Copy("m1-1", 1)


def tablet_missing(harness: Harness) -> None:
    harness.world.volumes[1].tablets[0].state = "DELETED"


def write_missing(harness: Harness) -> None:
    harness.world.volumes[1].tablets[0].data.pop()


def backup_differs(harness: Harness) -> None:
    harness.world.volumes[1].tablets[0].data.append(10**9)


def never_ended(harness: Harness) -> None:
    harness.world.volumes[1].events.begun.append("m1-1")


def ended_twice(harness: Harness) -> None:
    events = harness.world.volumes[1].events
    events.begun.append("m1-1")
    events.committed.append("m1-1")
    events.rolled_back.append("m1-1")


def state_behind(harness: Harness) -> None:
    harness.world.volumes[1].state = "Frozen"


def still_locked(harness: Harness) -> None:
    harness.world.volumes[1].locked = "c1-1"


BROKEN: dict[Callable[[Harness], None], str] = {
    slot_empty: "has not its 3 slots filled",
    member_gone: r"names \[0\], which are not there",
    table_behind: "member 1 has Row",
    list_behind: "member 1 has member list",
    leaked_tablet: "member 2 holds a READY tablet",
    leaked_copy: "member 2 still has copies",
    tablet_missing: "has no copy",
    write_missing: "lacks",
    backup_differs: "differs from its owner",
    never_ended: "begun",
    state_behind: "member 1 is Frozen",
    still_locked: "lock 'c1-1'",
    ended_twice: "ended",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
async def test_a_check_sees_what_is_broken(broken: Callable[[Harness], None]) -> None:
    harness = await formed(members=3, partitions=1)
    check_state(harness)
    assert harness.table().partitions[0].replicas == (0, 1)
    broken(harness)
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        check_state(harness)
