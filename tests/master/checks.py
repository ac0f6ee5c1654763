"""What must hold when nothing is under way any more, on every member that can be asked.

The list is the one of Hazelcast's partition tests: every slot filled by a live member of the right
identity, nothing held that no row names, nothing missing, copies equal, as many copies as desired, and every
migration that began also ended, once.
"""

from collections.abc import Iterator

from tests.fakes.members import FakeMember
from tests.master.harness import Harness


def check_state(harness: Harness) -> None:
    """Raises AssertionError with everything that is wrong."""
    faults = [
        *_slots(harness),
        *_tables(harness),
        *_leaks(harness),
        *_copies(harness),
        *_ends(harness),
        *_states(harness),
    ]
    assert not faults, "\n".join(faults)


def live_members(harness: Harness) -> dict[int, FakeMember]:
    """Members of the stored dictionary that run, reach the others and still have their identity."""
    return {
        index: volume
        for index, entry in harness.table().members.items()
        if (volume := harness.world.volumes.get(index)) is not None
        and volume.alive
        and volume.uuid == entry.uuid
        and volume.address not in harness.net.cut
    }


def lost_partitions(harness: Harness) -> set[int]:
    """Partitions of which no replica is there; the master must have said so."""
    live = live_members(harness).keys()
    found = {n for n, row in enumerate(harness.table().partitions) if row.replicas and not row.members & live}
    assert found == harness.state.failover.lost, (
        f"lost are {found}, the master says {harness.state.failover.lost}"
    )
    return found


def _slots(harness: Harness) -> Iterator[str]:
    live, table = live_members(harness), harness.table()
    able = [index for index in live if not table.members[index].lite]
    for number, row in enumerate(table.partitions):
        wanted = min(table.replicas_of(number, harness.world.wanted.replicas), len(able))
        if number in lost_partitions(harness):
            continue
        frozen, keeps = harness.head().state != "Active", harness.head().state in ("Frozen", "Passive")
        if not frozen and (None in row.replicas or len(row.members) != wanted):
            yield f"partition {number}: {row} has not its {wanted} slots filled"
        if (gone := row.members - live.keys()) and not (keeps and number in harness.state.failover.kept):
            yield f"partition {number}: {row} names {sorted(gone)}, which are not there"


def _tables(harness: Harness) -> Iterator[str]:
    """The same rows, hence versions, everywhere."""
    table = harness.table()
    for index, member in live_members(harness).items():
        for number, row in enumerate(table.partitions):
            mine = member.row(number)
            if (mine.version, mine.replicas) != (row.version, row.replicas):
                yield f"member {index} has {mine} of partition {number}, stored is {row}"
        if member.member_list_version != harness.head().member_list_version:
            yield f"member {index} has member list {member.member_list_version}"


def _leaks(harness: Harness) -> Iterator[str]:
    """What no row names is gone, unless its partition lacks a copy: then it may be needed again.

    Sessions at a source are not looked at: what no master closes ends with its lease.
    """
    table, lost = harness.table(), lost_partitions(harness)
    for index, member in live_members(harness).items():
        for number, tablet in member.tablets.items():
            row = table.partitions[number].members
            spare = number in lost or len(row) < harness.world.wanted.replicas
            if tablet.state != "DELETED" and index not in row and not spare:
                yield f"member {index} holds a {tablet.state} tablet of partition {number}"
        for name in ("learners", "copies", "staged", "fetches", "accepted", "frozen"):
            if held := getattr(member, name):
                yield f"member {index} still has {name}: {held}"


def _copies(harness: Harness) -> Iterator[str]:
    """Every copy holds what was acknowledged, and no copy holds anything else than its owner."""
    live = live_members(harness)
    for number, row in enumerate(harness.table().partitions):
        held = {i: live[i].tablets.get(number) for i in row.replicas if i is not None and i in live}
        for index, tablet in held.items():
            if tablet is None or tablet.state != "READY":
                yield f"partition {number}: member {index} of {row} has no copy: {tablet}"
            elif missing := harness.written.get(number, set()) - set(tablet.data):
                yield f"partition {number}: member {index} of {row} lacks {missing}"
        owner = held.get(row.owner) if row.owner is not None else None
        for index, tablet in held.items():
            if owner is not None and tablet is not None and tablet.data != owner.data:
                yield f"partition {number}: member {index} differs from its owner {row.owner}"


def _ends(harness: Harness) -> Iterator[str]:
    for index, member in live_members(harness).items():
        events = member.events
        if sorted(events.begun) != sorted([*events.committed, *events.rolled_back]):
            yield f"member {index}: begun {events.begun}, ended {events.committed} {events.rolled_back}"


def absent(harness: Harness) -> bool:
    """Whether somebody's place may still be kept."""
    return bool(harness.net.cut) or any(not member.alive for member in harness.world.volumes.values())


def _states(harness: Harness) -> Iterator[str]:
    """The state that is stored is the wished one, everybody has it, and nobody is locked."""
    head, desired = harness.head().state, harness.world.wanted.state
    tls, wanted = harness.head().member_tls, harness.world.wanted.member_tls.level
    if head != desired:
        yield f"{head} is in force, {desired} is desired"
    # A step waits for everybody on the list: who comes back has to be able to talk to the others.
    if tls != wanted and not absent(harness):
        yield f"TLS among members is {tls}, {wanted} is desired"
    for index, member in live_members(harness).items():
        if member.state != head or member.locked:
            yield f"member {index} is {member.state}, lock {member.locked!r}; {head} is in force"
        if member.tls != tls:
            yield f"member {index} has TLS {member.tls}, {tls} is in force"


def served(harness: Harness) -> set[int]:
    """Partitions whose owner acknowledges a write now."""
    before = {number: len(values) for number, values in harness.written.items()}
    harness.write()
    return {n for n, values in harness.written.items() if len(values) > before.get(n, 0)}
