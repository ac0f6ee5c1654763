"""Every interleaving of one transaction's messages, with faults: a search through all states of a world.

Each participant has one counter, which the transaction adds 1 to. The coordinator's part watches its
counter. Besides, plain writes add 10 or take 10 away, a keyspace is cleared, owners start again, messages are
repeated, connections end, the originator dies, and partitions are reset: the coordinator's, or another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from stele.core.kv import two_phase
from stele.core.kv.two_phase import (
    Answered,
    Intent,
    Locks,
    Mark,
    Originator,
    Outcome,
    Part,
    Ran,
    Send,
    Status,
    Step,
    TxId,
    Verb,
    Verdict,
    is_forgettable,
)

ID = TxId("originator", 1, 7)
KEY = (b"default", b"k")


class ViolationError(AssertionError):
    """A rule is broken; the text has the actions that led there."""


@dataclass(frozen=True)
class Faults:
    """How many of each there may be."""

    repeats: int = 0
    cuts: int = 0
    deaths: int = 0
    restarts: int = 0
    writes: int = 0
    clears: int = 0
    resets: int = 0
    losses: int = 0
    refusals: int = 0
    early_asks: int = 0


@dataclass
class Partition:
    """What its log says, and the locks in its owner's memory."""

    number: int
    value: int = 0
    history: bytes = b"first"
    intents: dict[TxId, Intent] = field(default_factory=dict)
    outcomes: dict[TxId, Outcome] = field(default_factory=dict)
    marked: Mark | None = None
    locked: bool = False
    applied: int = 0
    applied_before: int = 0
    lost: int = 0
    base: int = 0

    def intent(self, id: TxId) -> Intent | None:
        return self.intents.get(id)

    def outcome(self, id: TxId) -> Outcome | None:
        return self.outcomes.get(id)

    def mark(self, member: str) -> Mark | None:
        return self.marked

    def copy(self) -> Partition:
        return replace(self, intents=dict(self.intents), outcomes=dict(self.outcomes))

    def key(self) -> object:
        return (
            *(self.value, self.history, tuple(self.intents.items()), tuple(self.outcomes.items())),
            *(self.marked, self.locked, self.applied, self.applied_before, self.lost, self.base),
        )

    def locks(self) -> Locks:
        return Locks(self.intents.items() if self.locked else ())

    def log(self, step: Step) -> None:
        """Apply what a step logs, in one operation."""
        self.lost += step.status is Status.LOST
        for _, _, value, _ in step.changes:
            if self.value != self.base:
                raise ViolationError(f"partition {self.number} was changed between evaluation and commit")
            self.value = int(value or 0)
            self.applied += 1
        for write in step.writes:
            self._write(write)

    def _write(self, write: two_phase.Write) -> None:
        if write.of is Intent:
            if isinstance(write.value, Intent):
                self.intents[write.id], self.locked = write.value, True
            else:
                del self.intents[write.id]
                self.locked = False
        elif isinstance(write.value, Outcome):
            self.outcomes[write.id] = write.value


@dataclass
class World:
    """One state. `waiting` are messages on their way, with whether the originator still counts on each."""

    partitions: list[Partition]
    originator: Originator
    faults: Faults
    alive: bool = True
    sent: tuple[Send, ...] = ()
    waiting: tuple[Send, ...] = ()
    stale: tuple[Send, ...] = ()
    asked: tuple[tuple[int, Status], ...] = ()
    driven: tuple[int, ...] = ()
    in_doubt: tuple[int, ...] = ()
    reset: bool = False

    @classmethod
    def new(cls, participants: int, faults: Faults) -> World:
        return cls([Partition(n) for n in range(participants)], Originator(range(participants)), faults)

    # -- copies

    def copy(self) -> World:
        originator = Originator(range(len(self.partitions)))
        originator.__dict__.update(self.originator.__dict__)
        return replace(self, partitions=[each.copy() for each in self.partitions], originator=originator)

    def key(self) -> object:
        driver = self.originator
        return (
            tuple(each.key() for each in self.partitions),
            *(driver.prepared, driver.verdict, driver.outcome, driver.over, driver._asking),
            *(tuple(driver._pending), self.faults, self.alive, self.sent, self.waiting),
            *(self.stale, self.asked, self.driven, self.in_doubt, self.reset),
        )

    # -- what may happen next

    def actions(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """What happens by itself, sooner or later."""
        if self.alive:
            for send in self.originator.next():
                if send not in self.sent:
                    yield f"send {send}", lambda world, send=send: world.send(send)
        for send in self.waiting:
            if self.can_run(send):
                yield f"deliver {send}", lambda world, send=send: world.deliver(send)
        for part in self.partitions:
            yield from self._recovery(part)

    def _recovery(self, part: Partition) -> Iterator[tuple[str, Callable[[World], None]]]:
        number = part.number
        asks = [each for each, _ in self.asked]
        left = not self.alive or self.originator.over
        if ID in part.intents and number not in (*asks, *self.in_doubt) and left:
            yield f"ask for {number}", lambda world: world.ask(number)
        for at, status in self.asked:
            if at == number:
                yield f"tell {number} {status.name}", lambda world: world.tell(number)
        if number in self.in_doubt and ID in part.intents and self.recalled(number) is not Status.UNKNOWN:
            yield f"recall for {number}", lambda world: world.recall(number)
        if not self.alive and part.marked is None:
            yield f"close {number}", lambda world: world.set_mark(number, Mark(ID.incarnation + 1, 0))
        if self.originator.ended and self.alive and part.marked is None:
            yield f"mark {number}", lambda world: world.set_mark(number, Mark(1, ID.number + 1))
        known = part.outcomes.get(ID)
        if not self.alive and known is not None:
            for each in known.participants:
                if each not in self.driven:
                    yield f"drive {each}", lambda world, each=each: world.drive(each)
            if known.participants and set(known.participants) <= set(self.driven):
                yield f"told {number}", lambda world: world.told(number)

    def accidents(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """What may happen besides, as often as the faults allow."""
        faults = self.faults
        for send in {*self.waiting, *self.stale}:
            if self.can_run(send) and (send in self.stale or faults.repeats):
                yield f"repeat {send}", lambda world, send=send: world.repeat(send)
        if faults.cuts and self.alive:
            for send in self.waiting:
                yield f"cut {send}", lambda world, send=send: world.cut(send)
        for send in self.waiting:
            if faults.refusals and self.alive and self.may_refuse(send):
                yield f"refuse {send}", lambda world, send=send: world.refuse(send)
        if faults.deaths and self.alive:
            yield "die", World.die
        for part in self.partitions:
            yield from self._at(part)

    def _at(self, part: Partition) -> Iterator[tuple[str, Callable[[World], None]]]:
        faults, number = self.faults, part.number
        free = part.locks().are_free([KEY])
        if faults.restarts:
            yield f"restart {number}", lambda world: world.restart(number)
        if faults.writes and free:
            yield f"write {number}", lambda world: world.write(number)
        if faults.clears and self.may_clear(part):
            yield f"clear {number}", lambda world: world.clear(number)
        if faults.resets and number == self.originator.coordinator:
            yield f"reset {number}", lambda world: world.reset_partition(number)
        if faults.losses and number != self.originator.coordinator:
            yield f"lose {number}", lambda world: world.lose_partition(number)
        if faults.early_asks and ID in part.intents and not self.asked:
            yield f"ask early for {number}", lambda world: world.ask(number, early=True)

    def may_clear(self, part: Partition) -> bool:
        return not part.locks().any_in(KEY[0])

    def _spend(self, name: str) -> None:
        self.faults = replace(self.faults, **{name: getattr(self.faults, name) - 1})

    # -- the originator

    def send(self, send: Send) -> None:
        self.sent += (send,)
        self.waiting = tuple(sorted({*self.waiting, send}))

    def can_run(self, send: Send) -> bool:
        part = self.partitions[send.partition]
        if send.verb in (Verb.ASK, Verb.END) or two_phase.settled(part, ID):
            return True
        return part.locks().are_free([KEY], but=ID)

    def deliver(self, send: Send) -> None:
        step = self.run(send)
        self.waiting = tuple(each for each in self.waiting if each != send)
        if self.alive:
            self.originator.answered(send, step.status)

    def repeat(self, send: Send) -> None:
        if send in self.stale:
            self.stale = tuple(each for each in self.stale if each != send)
        else:
            self._spend("repeats")
            if send.verb is not Verb.END:
                self.stale = tuple(sorted({*self.stale, send}))
                return
        self.run(send)

    def cut(self, send: Send) -> None:
        """The connection ends, and the message may arrive all the same."""
        self._spend("cuts")
        self.waiting = tuple(each for each in self.waiting if each != send)
        self.sent = tuple(each for each in self.sent if each != send)
        self.stale = tuple(sorted({*self.stale, send}))
        self.originator.lost(send)

    def may_refuse(self, send: Send) -> bool:
        """Whether it is a Decide of which no copy was, or is, on its way: others end as uncertain."""
        run = ID in self.partitions[send.partition].outcomes
        return send.verb is Verb.DECIDE and send not in self.stale and not run

    def refuse(self, send: Send) -> None:
        """No owner takes the message, now or later."""
        self._spend("refusals")
        self.waiting = tuple(each for each in self.waiting if each != send)
        self.originator.answered(send, Status.REFUSED)

    def die(self) -> None:
        self._spend("deaths")
        self.alive = False
        self.stale, self.waiting = tuple(sorted({*self.stale, *self.waiting})), ()

    # -- partitions

    def run(self, send: Send) -> Step:
        part = self.partitions[send.partition]
        if send.verb is Verb.PREPARE:
            step = two_phase.prepare(part, self.part(), lambda intent: self.evaluate(part))
        elif send.verb is Verb.DECIDE:
            step = two_phase.decide(part, self.part(), lambda intent: self.evaluate(part))
        elif send.verb is Verb.ASK:
            step = two_phase.ask(part, ID, b"first")
        else:
            verdict = self.originator.verdict
            assert verdict is not None
            step = two_phase.end(part, ID, verdict)
        part.log(step)
        return step

    def part(self) -> Part:
        numbers = tuple(each.number for each in self.partitions)
        return Part(ID, self.originator.coordinator, b"first", numbers, (KEY,))

    def evaluate(self, part: Partition) -> Ran:
        """Add 1; the coordinator's part is refused while its counter is not as it was watched."""
        watched = part.number == self.originator.coordinator
        if watched and part.value:
            return Ran(None, refused=True)
        if ID not in part.intents:
            part.base = part.value
        return Ran(part.value + 1, ((*KEY, b"%d" % (part.value + 1), 0),))

    def restart(self, number: int) -> None:
        self._spend("restarts")
        part = self.partitions[number]
        part.locked = bool(part.intents)

    def write(self, number: int) -> None:
        self._spend("writes")
        part = self.partitions[number]
        part.value += -10 if part.value >= 10 else 10

    def clear(self, number: int) -> None:
        self._spend("clears")
        self.partitions[number].value = 1000

    def reset_partition(self, number: int) -> None:
        self._spend("resets")
        self.partitions[number] = Partition(number, history=b"second")
        self.reset = True

    def lose_partition(self, number: int) -> None:
        self._spend("losses")
        before = self.partitions[number].applied
        self.partitions[number] = Partition(number, history=b"second", applied_before=before)
        self.asked = tuple(each for each in self.asked if each[0] != number)

    # -- those left alone

    def ask(self, number: int, *, early: bool = False) -> None:
        if early:
            self._spend("early_asks")
        part = self.partitions[number]
        coordinator = self.partitions[self.originator.coordinator]
        step = two_phase.ask(coordinator, ID, part.intents[ID].history)
        coordinator.log(step)
        self.asked += ((number, step.status),)

    def tell(self, number: int) -> None:
        status = next(status for at, status in self.asked if at == number)
        self.asked = tuple(each for each in self.asked if each[0] != number)
        if status is Status.UNKNOWN:
            status = self.recalled(number)
        if status is Status.UNKNOWN:
            if any(ID in each.outcomes for each in self.partitions[:-1] if each.number != number):
                raise ViolationError(f"partition {number} is in doubt although another one knows")
            self.in_doubt += (number,)
        else:
            self._end(number, status)

    def recalled(self, number: int) -> Status:
        """What the others than this one and the coordinator know."""
        others = (each for each in self.partitions[:-1] if each.number != number)
        told = (two_phase.recall(each, ID).status for each in others)
        return next((each for each in told if each is not Status.UNKNOWN), Status.UNKNOWN)

    def recall(self, number: int) -> None:
        self._end(number, self.recalled(number))

    def _end(self, number: int, status: Status) -> None:
        verdict = Verdict.COMMIT if status is Status.COMMITTED else Verdict.ABORT
        self.partitions[number].log(two_phase.end(self.partitions[number], ID, verdict))

    def drive(self, number: int) -> None:
        self.driven += (number,)
        self.partitions[number].log(two_phase.end(self.partitions[number], ID, Verdict.COMMIT))

    def told(self, number: int) -> None:
        self.partitions[number].log(two_phase.told(self.partitions[number], ID))

    def set_mark(self, number: int, mark: Mark) -> None:
        part = self.partitions[number]
        if mark.incarnation == ID.incarnation:
            holding = [each.number for each in self.partitions if ID in each.intents]
            if any(self.partitions[each].history == b"first" for each in holding):
                raise ViolationError(f"a mark says that it is over, and partitions {holding} have locks")
        part.marked = mark
        self.forget(part)

    def forget(self, part: Partition) -> None:
        assert part.marked is not None
        for id, outcome in list(part.outcomes.items()):
            if is_forgettable(id, outcome, part.marked):
                del part.outcomes[id]

    # -- the rules

    def check(self) -> None:
        """What holds always."""
        for part in self.partitions:
            if part.applied > 1:
                raise ViolationError(f"partition {part.number} applied it {part.applied} times")

    def check_rest(self) -> None:
        """What holds when nothing more happens by itself."""
        if self.reset:
            # What the coordinator decided may be lost with its data: the others may not guess.
            others = self.partitions[:-1]
            kept = all(part.applied or part.intents for part in others)
            if self.originator.outcome is Answered.COMMITTED and not kept:
                raise ViolationError("a committed part was aborted")
            return
        done = [part.applied or self._went(part) for part in self.partitions]
        applied = [part.applied for part in self.partitions]
        if len(set(done)) > 1:
            raise ViolationError(f"one part was done and another not: {applied}")
        if any(part.intents or part.locked for part in self.partitions):
            raise ViolationError("a lock is left")
        self._check_told(applied[-1])

    def _went(self, part: Partition) -> bool:
        """Whether the part went with its partition's data: it was done before, or its loss is counted.

        After the originator's death, the mark of its next process may come first, and nobody counts it.
        """
        unseen = part.history == b"second" and part.marked is not None and not self.alive
        return bool(part.applied_before or part.lost or (unseen and self.partitions[-1].applied))

    def _check_told(self, applied: int) -> None:
        outcome = self.originator.outcome
        if outcome not in (None, Answered.UNCERTAIN) and applied != (outcome is Answered.COMMITTED):
            raise ViolationError(f"the client was told {outcome}, and it was applied {applied} times")


def explore(world: World, most: int = 2_000_000) -> tuple[int, set[str]]:
    """Visit all states, and return their number and how transactions ended at rest."""
    seen: set[object] = {world.key()}
    todo: list[tuple[World, tuple[str, ...]]] = [(world, ())]
    ends: set[str] = set()
    while todo:
        state, path = todo.pop()
        moves = list(state.actions())
        try:
            if not moves:
                state.check_rest()
                told = "nothing" if state.originator.outcome is None else state.originator.outcome.name
                ends.add(f"{told} {max(part.applied for part in state.partitions)}")
            for name, move in [*moves, *state.accidents()]:
                following = state.copy()
                trail = (*path, name)
                move(following)
                following.check()
                key = following.key()
                if key not in seen:
                    seen.add(key)
                    todo.append((following, trail))
        except ViolationError as broken:
            raise ViolationError(f"{broken}: {' / '.join(path)}") from broken
        assert len(seen) <= most, "too many states"
    return len(seen), ends
