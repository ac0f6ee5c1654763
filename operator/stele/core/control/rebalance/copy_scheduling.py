"""From which replica a tablet is copied, how fast, whether it fits, and what came of it (docs/copy.md).

Waves are values that know nothing of the cluster (`waves`); here they meet the memory of the reign.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from stele.core.control.migration_queue import planned_bytes
from stele.core.control.operations.copy_session import Copied, Stage, Wave
from stele.core.control.operations.move import Running, Step
from stele.core.control.rebalance.planner import sizes
from stele.core.control.state import Record, State
from stele.core.copy.pacing import SPACE_MARGIN_BYTES
from stele.core.placement.migration import Migration
from stele.core.placement.plan import Refusal
from stele.core.table.ids import MemberIndex, PartitionId

COPIES_PER_MEMBER_MAX = 4
"""Waves that are read from one member at once, and as many that are written to one."""

SHORT_SECONDS = 60.0
"""A member that refused nothing for lack of space for so long has space again."""

NO_SPACE = "NO_SPACE"

COPY_STALL_SECONDS = 180.0
"""A copy of which nothing new is told for so long is given up. Its own attempts end sooner."""

_BEFORE_COPY = frozenset({Step.START, Step.ATTACH, Step.CATCH_UP})


def give_up_stalled(waves: Iterable[Wave], now: float) -> None:
    """Fail copies that stand still, such as those of a driver that hangs: nobody else would ever end them.

    One that waits for another to the same member, or for its turn at the copier, does not stand still.
    """
    copying = [wave for wave in waves if wave.stage is Stage.COPY]
    newest: dict[MemberIndex, float] = {}
    for wave in copying:
        newest[wave.destination] = max(wave.progressed_seconds, newest.get(wave.destination, 0.0))
    for wave in copying:
        if not wave.queued and now - newest[wave.destination] > COPY_STALL_SECONDS:
            wave.fail(f"STALLED: nothing new was told of the copy for {COPY_STALL_SECONDS:g} s")


class Sources:
    """Chooses for each migration the member that its tablet is read from, and spreads the load.

    An in-sync backup by choice, because the owner has clients: any applied prefix is right, and the rest
    comes from the owner's log. The owner when no backup is ready, or when a copy before this one was too old.
    """

    def __init__(self, state: State, gone: frozenset[MemberIndex]) -> None:
        self._state, self._gone = state, gone
        under_way = (each for each in state.running.values() if each.step in _BEFORE_COPY | {Step.COPY})
        self._load = Counter(each.copied_from for each in under_way if each.copied_from is not None)

    def of(self, running: Running) -> MemberIndex:
        """The choice, which stays while that member is as good as it was."""
        before = running.copied_from
        ready = list(self._ready(running))
        if before in ready or (before == running.owner and not ready):
            return running.owner if before is None else before
        if before is not None:
            self._load[before] -= 1
        chosen = min(ready, key=lambda member: (self._load[member], member), default=running.owner)
        self._load[chosen] += 1
        running.copied_from = chosen
        return chosen

    def _ready(self, running: Running) -> Iterator[MemberIndex]:
        if running.copies:
            return
        for member in running.base.replicas[1:]:
            if member is None or member == running.destination or member in self._gone:
                continue
            contact = self._state.contacts.get(member)
            if contact is not None and contact.tablet_state(running.partition) == "READY":
                yield member


def has_room(waves: Iterable[Wave], source: MemberIndex, destination: MemberIndex) -> bool:
    """Whether one more wave may go from the one to the other."""
    busy = [wave for wave in waves if wave.copying]
    read = sum(wave.source == source for wave in busy)
    written = sum(wave.destination == destination for wave in busy)
    return max(read, written) < COPIES_PER_MEMBER_MAX


def share_bandwidth(waves: Iterable[Wave], limit_bytes_per_second: int) -> None:
    """Set the rate of each wave so that what is read from and written to a member stays within the limit.

    Each member's limit is shared equally by the waves that it takes part in, and a wave gets the smaller of
    the two shares. 0: no limit.
    """
    busy = [wave for wave in waves if wave.copying]
    parts = Counter(member for wave in busy for member in (wave.source, wave.destination))
    for wave in busy:
        share = limit_bytes_per_second // max(parts[wave.source], parts[wave.destination])
        wave.bytes_per_second = max(1, share) if limit_bytes_per_second else 0


def expected_bytes(state: State, partition: PartitionId, destination: MemberIndex) -> int:
    """What a copy of the partition will need at the destination: the size that its owner tells.

    0 for a tablet that is there already and may only have to catch up: nobody waits for space to become safe.
    """
    owner = state.table.partitions[partition].owner
    contact = None if owner is None else state.contacts.get(owner)
    tablet = None if contact is None else contact.tablets.get(partition)
    there = state.contacts.get(destination)
    if tablet is None or (there is not None and there.tablet_state(partition) == "READY"):
        return 0
    return tablet.bytes


class Space:
    """Free bytes of the volumes, less what is on its way to them (but in one wave). Made anew each time."""

    def __init__(self, state: State, but: str = "") -> None:
        self._state = state
        self._coming = Counter[MemberIndex]()
        for wave in state.waves.values():
            if wave.copying and wave.items and wave.session != but:
                self._coming[wave.destination] += max(0, wave.bytes - wave.copied_bytes)
        for running in state.running.values():
            if running.destination is not None and running.migration.copies and self._waits(running):
                needed = expected_bytes(state, running.partition, running.destination)
                self._coming[running.destination] += needed

    def _waits(self, running: Running) -> bool:
        """Whether it may need bytes that no wave tells of yet."""
        wave = self._state.waves.get(running.session)
        if wave is not None:
            return wave.copying and not wave.items
        return running.step in _BEFORE_COPY and not running.copies

    def lack(self, destination: MemberIndex, needed_bytes: int) -> str:
        """Why so much more does not fit; empty when it does, or when the member does not tell."""
        contact = self._state.contacts.get(destination)
        free = -1 if contact is None or contact.report is None else contact.report.stats.disk_free_bytes
        left = free - self._coming[destination] - SPACE_MARGIN_BYTES
        if free < 0 or not needed_bytes or needed_bytes <= left:
            return ""
        return (
            f"{self._state.name_of(destination)} has {free} bytes free, {self._coming[destination]} are on "
            f"their way to it and {SPACE_MARGIN_BYTES} stay free; {needed_bytes} more do not fit: enlarge "
            f"its volume, add members or delete data"
        )

    def admit(self, migration: Migration) -> Refusal | None:
        """Count a migration that is about to start; the refusal when its destination has no room for it."""
        destination = migration.destination
        if destination is None or not migration.copies:
            return None
        needed = expected_bytes(self._state, migration.partition, destination)
        if lack := self.lack(destination, needed):
            return Refusal(migration.partition, NO_SPACE, f"{NO_SPACE}: {lack}")
        self._coming[destination] += needed
        return None


def note_short(state: State, destination: MemberIndex, refusal: Refusal, now: float) -> None:
    """Something waits for space at a member: said once until it was well for a while."""
    if destination not in state.short:
        state.say("NoSpace", f"partition {refusal.partition} waits: {refusal.detail}", warning=True)
    state.short[destination] = now


def waiting_for_space(state: State) -> Refusal | None:
    """The first migration of a plan under way that waits for space, None when none does."""
    records = (state.record, *state.asked.values())
    some = (record.waiting for record in records if record is not None and record.waiting)
    return next((next(iter(waiting.values())) for waiting in some), None)


def forget_waiting(state: State) -> None:
    """Nothing waits until it was looked at again."""
    for record in (state.record, *state.asked.values()):
        if record is not None:
            record.waiting = {}


def forget_short(state: State, now: float) -> None:
    """Members that refused nothing for a while."""
    state.short = {each: since for each, since in state.short.items() if now - since < SHORT_SECONDS}


def note_engine(state: State, wave: Wave, now: float) -> None:
    """Who copies a wave, and why, in each plan that it is part of."""
    for record in records_of(state, wave):
        if not record.destinations:
            planned = planned_bytes(record.plan, sizes(state))
            record.destinations = {
                member: Copied(state.name_of(member), size) for member, size in planned.items()
            }
        new = Copied(state.name_of(wave.destination), wave.bytes)
        copied = record.destinations.setdefault(wave.destination, new)
        copied.begin(wave, now)


def note_end(state: State, wave: Wave, now: float) -> None:
    """Count a wave that ended, once, in its plans and in the totals of this reign."""
    if wave.engine is None or wave.counted:
        return
    wave.counted = True
    new = Copied(state.name_of(wave.destination))
    total = state.copied.setdefault((wave.destination, wave.engine), new)
    total.count(wave, wave.copied_bytes, now)
    for record in records_of(state, wave):
        copied = record.destinations.get(wave.destination)
        if copied is not None:
            copied.count(wave, part_of(state, record, wave), now)


def records_of(state: State, wave: Wave) -> list[Record]:
    """The plans that a wave copies for, each once."""
    found: list[Record] = []
    for id in wave.partitions.values():
        found += [each for each in state.records.get(id, ()) if not any(each is other for other in found)]
    return found


def part_of(state: State, record: Record, wave: Wave) -> int:
    """Bytes copied so far in a wave for one plan."""
    mine = [id for id in wave.partitions.values() if any(r is record for r in state.records.get(id, ()))]
    return wave.part_of(mine)
