"""Patterns of SCAN: Redis's globs (`*`, `?`, `[a-c]`, `[^x]`, backslash), none of them slow for others.

A pattern is cut at its stars into pieces, each of which takes a fixed number of bytes: the first must be
where the key begins, the last where it ends, and each one between is looked for from the end of the one
before. So no key takes more steps than its length times that of the pattern. The steps are counted as entries
of the turn.
"""

import re
from functools import partial
from typing import NamedTuple

from stele.member.turn_budget import TurnBudget

PATTERN_BYTES_MAX = 1024

STEPS_PER_ENTRY = 4096
"""Comparisons of a byte of a key with one of a pattern that count as one entry of a turn (3 to 4 us)."""

WINDOW_STEPS_MAX = 128 * STEPS_PER_ENTRY
"""A search that takes more is done window by window, so that others have their turn between them."""

READ_BYTES_PER_ENTRY = 4
"""Bytes of a pattern that are read for one entry of a turn."""

_SEVERAL = (b".", b"[", b"(")
"""With these begin the expressions that stand for several bytes, or none."""


class Piece(NamedTuple):
    """What is between two stars: it takes `size` bytes, and `steps` at each place where it may begin."""

    expression: re.Pattern[bytes]
    size: int
    steps: int


class Pattern:
    """Tests keys. `steps` is what that took so far, at most."""

    def __init__(self, pattern: bytes, turn_budget: TurnBudget) -> None:
        pieces = _pieces(pattern)
        self._turn_budget = turn_budget
        self._first, self._last = pieces[0], pieces[-1]
        self._one = len(pieces) == 1
        self._between = [piece for piece in pieces[1:-1] if piece.size]
        self._least = self._first.size + (0 if self._one else self._last.size)
        self.steps = 0

    async def matches(self, key: bytes) -> bool:
        """Whether the pattern stands for the whole key."""
        self.steps += self._least
        at, end = self._first.size, len(key) - self._last.size
        if len(key) < self._least or not self._first.expression.match(key):
            return False
        if self._one:
            return len(key) == self._least
        if not self._last.expression.match(key, end):
            return False
        for piece in self._between:
            at = await self._find(piece, key, at, end)
            if at < 0:
                return False
        return True

    async def _find(self, piece: Piece, key: bytes, at: int, end: int) -> int:
        """Where the first of these in the key ends; -1 when there is none."""
        last = end - piece.size
        while at <= last:
            places = min(last + 1 - at, WINDOW_STEPS_MAX // piece.steps)
            until = at + places - 1 + piece.size
            before, self.steps = self.steps, self.steps + places * piece.steps
            entries = self.steps // STEPS_PER_ENTRY - before // STEPS_PER_ENTRY
            if entries:
                found = await self._turn_budget.run(entries, partial(piece.expression.search, key, at, until))
            else:
                found = piece.expression.search(key, at, until)
            if found is not None:
                return found.end()
            at += places
        return -1


async def read_pattern(pattern: bytes, turn_budget: TurnBudget) -> Pattern:
    """ValueError when it is too long."""
    if len(pattern) > PATTERN_BYTES_MAX:
        raise ValueError(f"pattern of {len(pattern)} bytes is longer than the {PATTERN_BYTES_MAX} allowed")
    return await turn_budget.run(
        -(-len(pattern) // READ_BYTES_PER_ENTRY), partial(Pattern, pattern, turn_budget)
    )


def _pieces(pattern: bytes) -> list[Piece]:
    """The parts between the stars."""
    pieces: list[list[bytes]] = [[]]
    at = 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        if char == b"*":
            pieces.append([])
            at += 1
            continue
        expression, at = _one(pattern, at)
        pieces[-1].append(expression)
    return [_piece(each) for each in pieces]


def _piece(expressions: list[bytes]) -> Piece:
    """Bytes that all stand for themselves are found in one pass over the key."""
    size, literal = len(expressions), not any(each.startswith(_SEVERAL) for each in expressions)
    return Piece(re.compile(b"".join(expressions), re.DOTALL), size, 1 if literal else size)


def _one(pattern: bytes, at: int) -> tuple[bytes, int]:
    char = pattern[at : at + 1]
    if char == b"?":
        return b".", at + 1
    if char == b"[":
        return _class(pattern, at + 1)
    if char == b"\\" and at + 1 < len(pattern):
        at += 1
    return re.escape(pattern[at : at + 1]), at + 1


def _class(pattern: bytes, at: int) -> tuple[bytes, int]:
    """A set of characters; one that is not closed ends with the pattern, as in Redis."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    body = b""
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
        first = last = pattern[at]
        if pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            last = pattern[at + 2]
            at += 2
        body += b"\\x%02x-\\x%02x" % (min(first, last), max(first, last))
        at += 1
    if not body:
        return (b"." if negated else b"(?!)"), at + 1
    return b"[%b%b]" % (b"^" if negated else b"", body), at + 1
