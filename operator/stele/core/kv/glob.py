"""Redis' globs (`*`, `?`, `[a-c]`, `[^x]`, backslash), split at their stars into pieces of fixed length.

The first piece must match at the start of a text, the last one at its end, and each one between is searched
from the end of the previous one. So a text takes at most its length times that of the pattern in steps.
"""

import re
from typing import NamedTuple

_SEVERAL = (b".", b"[", b"(")
"""Prefixes of expressions that do not match exactly one fixed byte."""


class Piece(NamedTuple):
    """The part between two stars: it matches `size` bytes, and takes `steps` per candidate position."""

    expression: re.Pattern[bytes]
    size: int
    steps: int


class Glob:
    """A compiled pattern. `steps` says beforehand how long a text may take."""

    __slots__ = ("_between", "_first", "_last", "_least", "_one", "_per_byte", "text")

    def __init__(self, text: bytes) -> None:
        pieces = pieces_of(text)
        self.text = text
        self._first, self._last = pieces[0], pieces[-1]
        self._one = len(pieces) == 1
        self._between = [piece for piece in pieces[1:-1] if piece.size]
        self._least = self._first.size + (0 if self._one else self._last.size)
        self._per_byte = sum(piece.steps for piece in self._between)

    def steps(self, size: int) -> int:
        """Return an upper bound of the byte comparisons that a text of `size` bytes takes."""
        return self._least + size * self._per_byte

    def matches(self, text: bytes) -> bool:
        """Return whether the pattern matches the whole text."""
        at, end = self._first.size, len(text) - self._last.size
        if len(text) < self._least or not self._first.expression.match(text):
            return False
        if self._one:
            return len(text) == self._least
        if not self._last.expression.match(text, end):
            return False
        for piece in self._between:
            found = piece.expression.search(text, at, end)
            if found is None:
                return False
            at = found.end()
        return True


def pieces_of(pattern: bytes) -> list[Piece]:
    """Compile the parts between the stars."""
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
    """Compile one part; literal parts are found in one pass over the key."""
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
    """Parse a character class; an unclosed one ends with the pattern, as in Redis."""
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
