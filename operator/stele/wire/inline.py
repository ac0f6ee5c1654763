"""Words of an inline request, as a person types it: quotes and escapes are those of Redis."""

import re

_WORD = re.compile(
    rb"""([^\s"']*)"""
    rb"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\'|\\(?!'))*)')?"""
    rb"""(?:\s+|$)"""
)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))")
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_words(line: bytes) -> list[bytes] | None:
    """Return the words of one line, None when a quote is not closed or not followed by a space."""
    line = line.strip()
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: list[bytes] = []
    at = 0
    while at < len(line):
        word = _WORD.match(line, at)
        if word is None:
            return None
        plain, double, single = word.groups()
        words.append(plain + _unescaped(double or b"") + (single or b"").replace(b"\\'", b"'"))
        at = word.end()
    return words


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: _byte(found[1], found[2]), text)


def _byte(digits: bytes | None, letter: bytes) -> bytes:
    return _LETTERS.get(letter, letter) if digits is None else bytes.fromhex(digits.decode())
