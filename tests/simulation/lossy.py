"""The check of a history when power was lost and writes were not synced (`power.py`).

A loss undoes the last writes: a tail of the order that explains the answers, in which each had begun before
the power went and was not answered before the oldest lost write was made. What nobody had answered then may
be done again later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tests.simulation.history import STATES_MAX, Loss, Operation, next_operations, step, worth_looking_at

Version = tuple[bytes | None, int]
"""A value, and the number of the operation that made it."""


@dataclass(frozen=True)
class _State:
    """`done` operations and `used` losses, as bits; `versions`: as far as losses can still go back."""

    done: int
    used: int
    versions: tuple[Version, ...]


def explained(operations: Sequence[Operation], losses: Sequence[Loss]) -> bool:
    """Whether some order, with some of the losses in it, explains the answers."""
    found = worth_looking_at(operations)
    must = sum(1 << n for n, each in enumerate(found) if each.end is not None)
    first = _State(0, 0, ((None, -1),))
    seen, stack = {first}, [first]
    while stack:
        state = stack.pop()
        if state.done & must == must:
            return True
        following = set(_with_an_operation(state, found, losses)) | set(_with_a_loss(state, found, losses))
        stack += sorted(following - seen, key=lambda each: (-each.used, each.done))
        seen |= following
        if len(seen) > STATES_MAX:
            raise RuntimeError(f"a history of {len(found)} operations takes more than {STATES_MAX} states")
    return False


def _with_an_operation(state: _State, found: list[Operation], losses: Sequence[Loss]) -> Iterator[_State]:
    for n in next_operations(found, state.done):
        operation, before = found[n], state.versions[-1][0]
        after, reply = step(before, operation)
        if operation.end is not None and reply != operation.reply:
            continue
        versions = state.versions
        if operation.kind != "get" and after != before:
            kept = versions if any(_undone(operation, loss) for loss in losses) else ()
            versions = (*kept, (after, n))
        yield _State(state.done | 1 << n, state.used, versions)


def _with_a_loss(state: _State, found: list[Operation], losses: Sequence[Loss]) -> Iterator[_State]:
    left = [each for n, each in enumerate(found) if not state.done >> n & 1 and each.end is not None]
    for bit, loss in enumerate(losses):
        if state.used >> bit & 1 or any(each.end < loss.at for each in left if each.end is not None):
            continue
        again = 0
        for length in count(len(state.versions) - 1, -1):
            if length < 1 or not _undone(found[state.versions[length][1]], loss):
                break
            operation, number = found[state.versions[length][1]], state.versions[length][1]
            again |= 1 << number if operation.end is None or operation.end > loss.at else 0
            for done in {state.done, state.done & ~again}:
                yield _State(done, state.used | 1 << bit, state.versions[:length])


def _undone(operation: Operation, loss: Loss) -> bool:
    """Whether it can be among what was lost."""
    return operation.begin <= loss.at and (operation.end is None or operation.end >= loss.since)
