"""What users do with copies in quarantine, and with partitions that are lost; and what holds meanwhile."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stele.adapters.kubernetes.api import MEMBERS
from stele.core.table.table import Partition
from stele.errors import SteleError
from stele.member.admin.quarantine import Quarantine
from stele.model.member import ACCEPTED_COPY
from stele.wire.storage.volume import Superblock
from tests.simulation.history import Loss
from tests.simulation.kubelet import Machine
from tests.simulation.profile import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.faults import Faults
    from tests.simulation.world import World

PURGED = "nothing is purged that may be the last copy"
GIVEN_UP = "all copies of a row are given up as users say"
WHOLE = "what is restored has all that it had"
NOTICED_SECONDS = 3.0
"""A loss is noticed so much later, and what was decided by it is stored so long after it ended."""
PURGED_SECONDS = 1.0
"""Members notice so much later that nobody of a row is connected any more."""
LOOKED_SECONDS = 0.5
"""A loss is seen so much later than it began."""
SAID_SECONDS = 10.0
"""What a user said counts so long after it was taken back."""

Check = Callable[..., None]


class QuarantineFaults:
    """The part of `faults` of users who restore and purge: each says whether it could be done."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world, self.api = faults, faults.world, faults.world.api
        self.todo: dict[str, Callable[[], bool]] = {
            "restore from quarantine": self._restore,
            "purge from quarantine": self._purge,
            "accept a copy": self._accept,
            "change what a loss does": self._change_loss,
        }

    def end(self) -> None:
        """What is lost waits for its members."""
        if self.world.cluster["spec"].get("onPartitionLoss", "Wait") != "Wait":
            self.faults.patch(onPartitionLoss="Wait")

    def _change_loss(self) -> bool:
        return self.faults.patch(onPartitionLoss=self.faults.random.choice(("ResetToEmpty", "Wait", "Wait")))

    def _restore(self) -> bool:
        return self._with_one("restore", self._quarantined())

    def _purge(self) -> bool:
        found, lost = self._quarantined(), self._lost()
        return self._with_one("purge", [each for each in found if each[1] in lost] or found)

    def _lost(self) -> set[int]:
        """Partitions without a member that runs."""
        running = {int(each.place.rpartition("-")[2]) for each in self.world.kubelet.running()}
        rows = enumerate(self.world.rows())
        return {number for number, row in rows if row.members and not row.members & running}

    def _quarantined(self) -> list[tuple[Machine, int, int]]:
        """Machines that run, each with a partition and a generation in quarantine there."""
        return [
            (machine, number, entry.generation)
            for machine in self.world.kubelet.running()
            for number, replica in (machine.node.replicas if machine.node is not None else {}).items()
            if replica.block is not None
            for entry in replica.block.quarantined
        ]

    def _with_one(self, what: str, found: list[tuple[Machine, int, int]]) -> bool:
        if not found:
            return False
        machine, number, generation = self.faults.random.choice(found)
        assert machine.node is not None
        quarantine = Quarantine(machine.node)
        self._ask(machine, partial(getattr(quarantine, what), number, generation), lambda: None)
        return self.faults.say(f"the user asks to {what} generation {generation} of {number}", machine.place)

    def _accept(self) -> bool:
        """`quarantine restore --as-owner`, of a partition without a member that runs.

        Once for each partition: a copy from before another loss would bring back what that one took.
        """
        rows, lost = self.world.rows(), self._lost() - self.world.given_up
        found = [each for each in self._quarantined() if each[1] in lost]
        if not found:
            return False
        machine, number, generation = self.faults.random.choice(found)
        assert machine.node is not None
        accepted = {f"{ACCEPTED_COPY}{number}": str(rows[number].version)}
        done = partial(self.api.annotate, MEMBERS, machine.place, accepted)
        self._ask(machine, partial(Quarantine(machine.node).restore, number, generation), done)
        text = f"the user accepts generation {generation} of {number} for version {rows[number].version}"
        return self.faults.say(text, machine.place)

    def _ask(self, machine: Machine, work: Callable[[], Awaitable[object]], done: Callable[[], None]) -> None:
        """A request to a member; `done` follows when it was answered."""

        async def answer() -> None:
            try:
                await work()
            except SteleError as error:
                self.world.trace.note(machine.place, f"refuses: {error}")
                return
            self.world.trace.cover(f"quarantine: {getattr(work, 'func', work).__name__}")
            done()

        if machine.process is not None and machine.node is not None and machine.node.exchange.started:
            machine.process.loop.create_task(answer())


class _GivenUp(NamedTuple):
    """From operation `first` on, what was written since `since` is no more, of one partition, at `at`."""

    partition: int
    at: float
    since: float
    first: int


class Losses:
    """Looks at what is given up: copies in quarantine, and all copies of a row.

    `_alone` has since when no member of a partition's row runs with a whole copy, and when that was last so.
    """

    def __init__(self, world: "World", check: Check) -> None:
        self.world, self._check = world, check
        self._alone: dict[int, tuple[float, float]] = {}
        self._named: dict[tuple[int, int], float] = {}
        self._abandoned: set[tuple[str, int, int]] = set()
        self._accepted: set[tuple[int, int]] = set()
        self._may_reset_until = 0.0
        self._given_up: list[_GivenUp] = []

    # -- what is seen

    def look(self) -> None:
        now = self.world.clock.now
        self._note_spec()
        for number, row in enumerate(self.world.rows()):
            self._note(number, row, now)

    def _note(self, number: int, row: Partition, now: float) -> None:
        if row.members and not any(self._is_whole(member, number) for member in row.members):
            self._alone[number] = self._alone.get(number, (now, now))[0], now
        elif number in self._alone and now - self._alone[number][1] > NOTICED_SECONDS:
            del self._alone[number]

    def _note_spec(self) -> None:
        if self.world.cluster["spec"].get("onPartitionLoss") == "ResetToEmpty":
            self._may_reset_until = self.world.clock.now + SAID_SECONDS

    def _is_whole(self, member: int, number: int) -> bool:
        machine = self.world.kubelet.machines.get(f"{CLUSTER}-{member}")
        return machine is not None and machine.up and machine.disk.state_of(number) == "READY"

    def agreed(self, number: int, version: int) -> None:
        """A member accepted that row: it has what the one before had."""
        self._accepted.add((number, version))

    # -- what may break

    def saved(self, place: str, number: int, block: Superblock, before: Superblock | None) -> None:
        """A superblock is written; what it does not have any more is purged, or restored.

        A member that has a whole copy of its row may purge others, also when its pod is gone. What was set
        aside while it was still received was never whole.
        """
        left = {each.generation for each in block.quarantined} | {block.generation}
        purged = [each for each in before.quarantined if each.generation not in left] if before else []
        if before is not None and before.state == "COPYING":
            had = {each.generation for each in before.quarantined}
            new = {each.generation for each in block.quarantined} - had
            self._abandoned |= {(place, number, generation) for generation in new}
        purged = [each for each in purged if (place, number, each.generation) not in self._abandoned]
        rows, index = self.world.rows(), int(place.rpartition("-")[2])
        serves = block.state == "READY" and bool(rows) and index in rows[number].members
        if not purged or serves or not rows:
            return  # Without rows the cluster is about to be recovered.
        self.world.trace.cover("quarantine: purged")
        since, last = self._alone.get(number, (self.world.clock.now, 0.0))
        returned = any(self._is_whole(member, number) for member in rows[number].members)
        alone = not returned and last - since > PURGED_SECONDS and self.world.clock.now - last < 1.0
        text = "{} purges {}, and no member of the row runs with a copy since {:.1f}"
        self._check(PURGED, not alone, text, place, purged, since, partition=number)

    def row(self, number: int, before: Partition, row: Partition) -> None:
        """A row was stored. One that keeps no member was agreed to, or users gave the others up."""
        now = self.world.clock.now
        self._note_spec()
        self._note(number, before, now)
        for member in before.members:
            self._named[number, member] = now
        if not before.members or before.members & row.members or (number, row.version) in self._accepted:
            return
        owner = f"{CLUSTER}-{row.owner}"
        member = self.world.api.find(MEMBERS, owner) or {"metadata": {}}
        note = (member["metadata"].get("annotations") or {}).get(f"{ACCEPTED_COPY}{number}")
        self.world.trace.cover("a copy was accepted" if note else "a partition was reset")
        since, last = self._alone.get(number, (now, 0.0))
        lost = now - last <= NOTICED_SECONDS
        grace = now - since >= self.world.profile.grace_seconds - LOOKED_SECONDS
        said = note == str(before.version) or (now <= self._may_reset_until and grace)
        text = "{} follows {}: lost {}, accepted for {}"
        self._check(GIVEN_UP, lost and said, text, row, before, lost, note, partition=number)
        first = self._first_lost(number, row) if note == str(before.version) else (0, float("-inf"))
        self.world.given_up.add(number)
        self._given_up.append(_GivenUp(number, now, first[1], first[0]))

    def _first_lost(self, number: int, row: Partition) -> tuple[int, float]:
        """After which operation, and since when, the accepted copy lacks what was written."""
        machine = self.world.kubelet.machines.get(f"{CLUSTER}-{row.owner}")
        replica = None if machine is None or machine.node is None else machine.node.replicas.get(number)
        last = 0 if replica is None else replica.tablet.log.last[1]
        return last + 1, self._named.get((number, row.owner or 0), 0.0)

    # -- what may be missing

    def of(self, partition: int) -> list[Loss]:
        """The losses that a client may see."""
        return [Loss(each.at, each.since) for each in self._given_up if each.partition == partition]

    def explains(self, partition: int, index: int) -> bool:
        """Whether a committed operation may be another one now."""
        return any(each.partition == partition and index >= each.first for each in self._given_up)
