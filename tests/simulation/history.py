"""What clients did and were told: one history per key, and the checks of it.

An operation begins and ends at moments of the world's time; `end` is None when nobody knows whether it was
done. A history is right when every operation can be given one moment between its beginning and its end so
that each answer follows from the operations before it (linearizability, per key).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

LINEARIZABLE = "linearizable per key"
RECENT = "reads from backups are recent, and in order"
STATES_MAX = 200_000
"""States that one history may take to check."""


@dataclass(slots=True)
class Operation:
    """`kind`: get, set, add (only when nothing is there), delete, increment, append, clear (all keys of the
    partition, so that it is in the history of each).

    `value` is what was given (bytes; b"" for none); `reply` what was answered, None while that is not known.
    `refused`: the answer says that nothing was done. `once`: it may have been sent several times.
    `stale_seconds`: what is read may have been replaced so long before it began. `after`: the number of the
    answered operation on this key that the same connection did before, 0 for none.
    """

    number: int
    client: str
    kind: str
    key: bytes
    value: bytes
    begin: float
    end: float | None = None
    reply: object = None
    once: bool = False
    stale_seconds: float = 0.0
    after: int = 0

    def __str__(self) -> str:
        ended = "?" if self.end is None else f"{self.end:.4f} -> {self.reply!r}"
        what = f"{self.kind}{' once' if self.once else ''} {self.key!r} {self.value!r}"
        return f"#{self.number} {self.client} {what} {self.begin:.4f} .. {ended}"


@dataclass
class Histories:
    """All operations by key. What was refused is not in them: it did nothing. `answered` hears of the others,
    when they are answered.
    """

    by_key: dict[bytes, list[Operation]] = field(default_factory=dict)
    acknowledged: int = 0
    unknown: int = 0
    answered: Callable[[Operation], None] = lambda operation: None

    def began(self, operation: Operation, keys: Sequence[bytes]) -> None:
        """It is done to these keys."""
        for key in keys:
            self.by_key.setdefault(key, []).append(operation)

    def refused(self, operation: Operation, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.by_key[key].remove(operation)


class Violation(Exception):  # noqa: N818
    """`rule`, by its name, was broken; `key` or `partition` say whose story to tell."""

    def __init__(self, rule: str, text: str, *, key: bytes = b"", partition: int = -1) -> None:
        super().__init__(text)
        self.rule, self.key, self.partition = rule, key, partition


State = bytes | None


@dataclass(frozen=True)
class Loss:
    """At `at` a member lost what it had written since `since`: that may be undone, the last first."""

    at: float
    since: float


def step(state: State, operation: Operation) -> tuple[State, object]:
    """What one operation makes of the stored value, and what it answers."""
    if operation.kind == "get":
        return state, state
    if operation.kind == "set":
        return operation.value, "OK"
    if operation.kind == "add":
        return (operation.value, "OK") if state is None else (state, None)
    if operation.kind == "clear":
        return None, "OK"
    if operation.kind == "delete":
        return None, int(state is not None)
    if operation.kind == "increment":
        number = int(state or b"0") + 1
        return b"%d" % number, number
    assert operation.kind == "append", operation.kind
    grown = (state or b"") + operation.value
    return grown, len(grown)


def check(key: bytes, operations: Sequence[Operation]) -> None:
    """Raise Violation when no order of the operations explains the answers.

    Depth first over (operations done, value), each looked at once (Wing and Gong, with Lowe's memory).
    Reads that may be stale are looked at last: each has its place from so many seconds before it began, and
    behind what its connection did before.
    """
    found = worth_looking_at(operations)
    exact = [each for each in found if not each.stale_seconds]
    if not _explained(exact):
        raise Violation(LINEARIZABLE, _complaint(key, exact), key=key)
    if len(exact) < len(found) and not _explained(found):
        raise Violation(RECENT, _complaint(key, found), key=key)


def worth_looking_at(operations: Sequence[Operation]) -> list[Operation]:
    """Sorted by begin, without reads that nobody answered.

    Writes that perhaps never were, and that no read tells of, count as alike: there may be many.
    """
    seen = b"".join(each.reply for each in operations if isinstance(each.reply, bytes))
    kept = []
    for each in operations:
        if each.end is None and each.kind == "get":
            continue
        unseen = each.end is None and (
            each.kind in ("increment", "delete", "clear") or each.value not in seen
        )
        if unseen:
            kept.append(replace(each, value=b"*" * len(each.value)))
        else:
            kept.append(replace(each, begin=each.begin - each.stale_seconds) if each.stale_seconds else each)
    return sorted(kept, key=lambda each: each.begin)


def _explained(operations: list[Operation]) -> bool:
    """Operations are sorted by their begin; those that have no end may be left out."""
    must = sum(1 << n for n, each in enumerate(operations) if each.end is not None)
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, None)]
    while stack:
        done, state = stack.pop()
        if done & must == must:
            return True
        for n in _worth_trying(operations, next_operations(operations, done), state):
            after, reply = step(state, operations[n])
            if operations[n].end is not None and reply != operations[n].reply:
                continue
            following = (done | 1 << n, after)
            if following not in seen:
                seen.add(following)
                stack.append(following)
        if len(seen) > STATES_MAX:
            raise RuntimeError(
                f"a history of {len(operations)} operations takes more than {STATES_MAX} states"
            )
    return False


def _worth_trying(operations: list[Operation], following: list[int], state: State) -> list[int]:
    """A stale read that fits is never wrong: it changes nothing, and only those behind it wait for it."""
    fits = (n for n in following if operations[n].stale_seconds and operations[n].reply == state)
    read = next(fits, None)
    return following if read is None else [read]


def next_operations(operations: list[Operation], done: int) -> list[int]:
    """What can be next: what begins before the first end of all that is left.

    Of those without an answer that are alike only the first. What has its place behind another waits for it.
    """
    found: list[int] = []
    waiting = {each.number for n, each in enumerate(operations) if not done >> n & 1}
    first_end, lone = float("inf"), set[tuple[str, bytes]]()
    for n in range((~done & (done + 1)).bit_length() - 1, len(operations)):
        operation = operations[n]
        if done >> n & 1:
            continue
        if operation.begin > first_end:
            break
        if operation.end is not None:
            first_end = min(first_end, operation.end)
        elif (alike := (operation.kind, operation.value)) in lone:
            continue
        else:
            lone.add(alike)
        if not operation.after or operation.after not in waiting:
            found.append(n)
    return [n for n in reversed(found) if operations[n].begin <= first_end]


def _complaint(key: bytes, operations: list[Operation]) -> str:
    """With the shortest beginning of the history that cannot be explained."""
    ends = sorted(each.end for each in operations if each.end is not None)
    for end in ends:
        begun = [each for each in operations if each.begin <= end]
        cut = [_as_of(each, end) for each in begun]
        if not _explained(cut):
            wrong = next(each for each in operations if each.end == end)
            lines = "\n".join(f"    {each}" for each in begun[-24:])
            return f"key {key!r}: no order of the operations explains the answer of {wrong}\n{lines}"
    return f"key {key!r}: no order of the operations explains the answers"


def _as_of(operation: Operation, moment: float) -> Operation:
    if operation.end is None or operation.end <= moment:
        return operation
    return replace(operation, end=None, reply=None)
