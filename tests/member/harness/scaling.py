"""A cluster that grows and shrinks: members join, take rows, and leave without any."""

import asyncio

from stele.core.control import commands as m
from stele.member.limits import LEAVE_SECONDS_MIN
from tests.member.harness.cluster import Cluster

STOP_SECONDS_MAX = 30.0


async def change_owners(made: Cluster) -> None:
    """Swap half of the partitions, and move the others to the member that is in no row of theirs."""
    for partition, row in list(made.rows.items()):
        if partition % 2:
            await made.swap(partition, _backup(row))
        else:
            (outside,) = _outside(made, row)
            await made.move_owner(partition, outside)


async def join(made: Cluster) -> int:
    """Add a member, and move to it the owner's place of the rows that are its share. Its index."""
    member = await made.add()
    await member.start_transfer()
    await made.publish()
    for partition in range(member.index, made.partitions, len(made.members)):
        await made.move_owner(partition, member.index)
    return member.index


async def leave(made: Cluster, leaving: int) -> None:
    """Empty a member, take it off the list, and end its process: no sooner than a pod's hook lets it end,
    since clients may need a second to ask for the new owners."""
    begun = asyncio.get_running_loop().time()
    for partition, row in list(made.rows.items()):
        if row.replicas[0] == leaving:
            await made.swap(partition, _backup(row))
        if leaving in made.rows[partition].replicas:
            await _move_backup(made, partition, leaving)
    made.left.add(leaving)
    made.list_version += 1
    await made.publish(set(made.members) - made.left)
    member = made.members[leaving]
    await asyncio.sleep(begun + LEAVE_SECONDS_MIN - asyncio.get_running_loop().time())
    assert await asyncio.wait_for(member.stop(), STOP_SECONDS_MAX) == 0
    member.process = None


async def _move_backup(made: Cluster, partition: int, leaving: int) -> None:
    """MOVE of index 1 to a member that is in no place of the row."""
    row, id = made.rows[partition], made.id()
    destination = min(_outside(made, row))
    result = (row.replicas[0], destination)
    await made.start_learner(id, partition, destination, "MOVE", result)
    await made.catch_up(id, partition, destination)
    await made.finish(id, partition, destination, result)
    await made.order(leaving, m.DeleteTablet(partition, made.version(partition)))


def _backup(row: m.Row) -> int:
    backup = row.replicas[1]
    assert backup is not None
    return backup


def _outside(made: Cluster, row: m.Row) -> set[int]:
    """The members that may join the row."""
    return set(made.members) - made.left - {each for each in row.replicas if each is not None}
