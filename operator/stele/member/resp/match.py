"""Patterns of SCAN: Redis's globs (`*`, `?`, `[a-c]`, `[^x]`, backslash), bounded in time.

A pattern is split at its stars into pieces of fixed length: the first must match at the start of the key, the
last at its end, and each one between is searched from the end of the previous one. A key therefore takes at
most its length times that of the pattern in steps, which count as entries of the turn.
"""

from functools import partial

from stele.core.kv.glob import Piece, pieces_of
from stele.member.turn_budget import TurnBudget

PATTERN_BYTES_MAX = 1024

STEPS_PER_ENTRY = 4096
"""Byte comparisons that count as one entry of a turn (3 to 4 us)."""

WINDOW_STEPS_MAX = 128 * STEPS_PER_ENTRY
"""Longer searches run in windows, so that other work gets its turn."""

READ_BYTES_PER_ENTRY = 4
"""Bytes of a pattern that are compiled per entry of a turn."""


class Pattern:
    """Matches keys. `steps` is an upper bound of the steps taken so far."""

    def __init__(self, pattern: bytes, turn_budget: TurnBudget) -> None:
        pieces = pieces_of(pattern)
        self._turn_budget = turn_budget
        self._first, self._last = pieces[0], pieces[-1]
        self._one = len(pieces) == 1
        self._between = [piece for piece in pieces[1:-1] if piece.size]
        self._least = self._first.size + (0 if self._one else self._last.size)
        self.steps = 0

    async def matches(self, key: bytes) -> bool:
        """Return whether the pattern matches the whole key."""
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
        """Return the end of the first match in key[at:end], -1 for none."""
        last = end - piece.size
        while at <= last:
            positions = min(last + 1 - at, WINDOW_STEPS_MAX // piece.steps)
            until = at + positions - 1 + piece.size
            before, self.steps = self.steps, self.steps + positions * piece.steps
            entries = self.steps // STEPS_PER_ENTRY - before // STEPS_PER_ENTRY
            if entries:
                match = await self._turn_budget.run(entries, partial(piece.expression.search, key, at, until))
            else:
                match = piece.expression.search(key, at, until)
            if match is not None:
                return match.end()
            at += positions
        return -1


async def read_pattern(pattern: bytes, turn_budget: TurnBudget) -> Pattern:
    """Compile a pattern. Raises ValueError when it is too long."""
    if len(pattern) > PATTERN_BYTES_MAX:
        raise ValueError(f"pattern of {len(pattern)} bytes is longer than the {PATTERN_BYTES_MAX} allowed")
    return await turn_budget.run(
        -(-len(pattern) // READ_BYTES_PER_ENTRY), partial(Pattern, pattern, turn_budget)
    )
