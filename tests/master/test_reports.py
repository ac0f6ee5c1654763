"""How often the master tells what it does: it never slows migrations down."""

from itertools import pairwise

from stele.core.control.state import State
from stele.wire.configmap import Head
from tests.master.harness import Harness, formed


async def test_statuses_are_written_at_most_once_a_second_however_much_happens() -> None:
    harness = Harness(members=3, partitions=24, parallel_per_member=1)
    shown: list[float] = []
    plain = harness.world.write_status

    async def counted(state: State, now: float) -> None:
        shown.append(now)
        await plain(state, now)

    harness.world.write_status = counted  # type: ignore[method-assign]
    await harness.until_quiet()
    harness.change_spec(members=5)
    began = harness.clock
    changes = 0
    while any(sum(index in row.members for row in harness.table().partitions) < 6 for index in (3, 4)):
        before = harness.table().partitions
        await harness.tick()
        changes += sum(a != b for a, b in zip(before, harness.table().partitions, strict=True))
    assert changes > 5
    busy = [now for now in shown if now >= began]
    assert len(busy) <= harness.clock - began + 1
    assert all(later - sooner >= 1.0 for sooner, later in pairwise(shown))


async def test_the_head_follows_the_shards_at_most_once_a_second() -> None:
    """Its stamp is for people: with each commit it would be a second write."""
    harness = await formed(members=3, partitions=24, parallel_per_member=1)
    harness.change_spec(members=4)
    written: list[float] = []
    plain = harness.loop._store.write_head

    async def write_head(head: Head) -> None:
        written.append(harness.clock)
        await plain(head)

    harness.loop._store.write_head = write_head  # type: ignore[method-assign]
    before = harness.table().partitions
    began = harness.clock
    await harness.ticks(100)
    changed = sum(a != b for a, b in zip(before, harness.table().partitions, strict=True))
    assert changed > 10
    # One more when the new member comes into the dictionary.
    assert len(written) <= harness.clock - began + 2
