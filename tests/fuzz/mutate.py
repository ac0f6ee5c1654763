"""Inputs that are nearly valid: the bytes of valid ones changed, and values of what they mean replaced."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgspec

INPUT_BYTES_MAX = 256 * 1024
"""Longest input; most are much shorter."""
DEPTHS = (2, 9, 40, 300, 5_000, 100_000)
LIMITS = (0, 1, -1, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**30)
TEXTS = ("", "\0", "-", "/", "..", "a" * 300, "ü", "\U0001f600", "\n", "0x10", "1e9", "NaN", "none", "@")
NOT_UTF8 = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")

_DIGITS = re.compile(rb"-?\d+")


@dataclass(frozen=True)
class Codec:
    """A notation of trees (dicts, lists, numbers, texts): `opens` begins one more level of nesting."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    opens: tuple[bytes, ...]
    odd: tuple[Any, ...]


def _deep(levels: int) -> Any:
    tree: Any = 0
    for _ in range(levels):
        tree = [tree]
    return tree


_ODD = (None, True, 1.5, -0.0, 1e308, [], {}, [[], {}], {"": None}, _deep(100), *TEXTS)
JSON = Codec(
    msgspec.json.Encoder().encode,
    msgspec.json.Decoder().decode,
    (b"[", b'{"a":', b'{"members":', b'"'),
    (*_ODD, *LIMITS, {str(n): n for n in range(50)}),
)
_OF_64_BITS = tuple(number for number in LIMITS if number < 2**64)
MSGPACK = Codec(
    msgspec.msgpack.Encoder().encode,
    msgspec.msgpack.Decoder().decode,
    (b"\x91", b"\x81\xa1a", b"\x81\x91", b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xc4\xff"),
    (*_ODD, *_OF_64_BITS, -(2**63), b"", b"\xff" * 70, float("nan"), float("inf"), {1: 2}),
)


def behind(codec: Codec) -> Codec:
    """Return the notation of trees behind a byte that says which they are: of [byte, tree]."""

    def encode(tree: Any) -> bytes:
        match tree:
            case [int(kind), inner, *_]:
                return bytes((kind % 256,)) + codec.encode(inner)
            case _:
                return b"\0" + codec.encode(tree)

    return replace(codec, encode=encode, decode=lambda body: [body[0], codec.decode(body[1:])])


class Mutator:
    """Makes one input of each state of a random number generator."""

    def __init__(
        self, samples: Sequence[bytes], codec: Codec | None = None, tokens: Sequence[bytes] = ()
    ) -> None:
        self._samples, self._codec = list(samples), codec
        opens = codec.opens if codec else tokens
        self._opens = tuple(opens) or (b"(",)
        self._tokens = (*NOT_UTF8, *tokens, *self._opens, b"\0", b"\r\n", b" ", b",", b":")
        self._trees: list[Any] = []
        for sample in samples if codec else ():
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                self._trees.append(codec.decode(sample))
        self._ways = (self._flip, self._flip, self._number, self._number, self._token, self._token)
        self._ways += (self._cut, self._splice, self._repeat, self._length, self._nest)

    def make(self, rng: Random) -> bytes:
        """Return the next input."""
        if rng.random() < 0.03:
            return rng.randbytes(rng.choice((0, 1, 3, 8, 40, 300)))
        body = rng.choice(self._samples)
        if self._trees and rng.random() < 0.6:
            tree = rng.choice(self._trees)
            for _ in range(rng.choice((1, 1, 2, 4))):
                tree = self._changed(rng, tree)
            assert self._codec is not None
            body = self._codec.encode(tree)
            if rng.random() < 0.8:
                return body[:INPUT_BYTES_MAX]
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            body = rng.choice(self._ways)(rng, body)
        return body[:INPUT_BYTES_MAX]

    # -- trees

    def _changed(self, rng: Random, tree: Any) -> Any:
        """Return a copy in which one thing, somewhere below, is another."""
        assert self._codec is not None
        if isinstance(tree, dict | list) and tree and rng.random() < 0.9:
            copy: Any = tree.copy()
            at = rng.choice(list(copy)) if isinstance(tree, dict) else rng.randrange(len(copy))
            what = rng.random()
            if what < 0.06:
                del copy[at]
            elif what < 0.12 and isinstance(copy, list):
                most = 30 if isinstance(copy[at], dict | list) else 1_000
                copy[at:at] = [copy[at]] * rng.choice((1, 1, 3, most))
            elif what < 0.16 and isinstance(copy, dict):
                copy[rng.choice(TEXTS)] = rng.choice(self._codec.odd)
            else:
                copy[at] = self._changed(rng, copy[at])
            return copy
        if isinstance(tree, str) and rng.random() < 0.7:
            return rng.choice(self._ways)(rng, tree.encode()).decode("utf-8", "replace")
        if isinstance(tree, bytes) and rng.random() < 0.7:
            return rng.choice(self._ways)(rng, tree)
        if isinstance(tree, int) and rng.random() < 0.3 and abs(tree) < 2**62:
            return tree + rng.choice((-1, 1))
        return rng.choice(self._codec.odd)

    # -- bytes

    @staticmethod
    def _flip(rng: Random, body: bytes) -> bytes:
        changed = bytearray(body)
        for _ in range(rng.choice((1, 1, 2, 8)) if body else 0):
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        return bytes(changed)

    @staticmethod
    def _number(rng: Random, body: bytes) -> bytes:
        """Replace a number that is written in digits."""
        found = _DIGITS.search(body, rng.randrange(len(body) + 1)) or _DIGITS.search(body)
        begin, end = found.span() if found else (0, 0)
        digits = b"1" * rng.choice((99, 4_300, 5_000)) if rng.random() < 0.1 else b"%d" % rng.choice(LIMITS)
        return body[:begin] + digits + body[end:]

    def _token(self, rng: Random, body: bytes) -> bytes:
        at = rng.randrange(len(body) + 1)
        return body[:at] + rng.choice(self._tokens) + body[at + rng.choice((0, 0, 1, 4)) :]

    @staticmethod
    def _cut(rng: Random, body: bytes) -> bytes:
        at, size = rng.randrange(len(body) + 1), rng.choice((1, 2, 8, 100, len(body)))
        return body[:at] + body[at + size :]

    def _splice(self, rng: Random, body: bytes) -> bytes:
        other = rng.choice(self._samples)
        return body[: rng.randrange(len(body) + 1)] + other[rng.randrange(len(other) + 1) :]

    @staticmethod
    def _repeat(rng: Random, body: bytes) -> bytes:
        at, size = rng.randrange(len(body) + 1), rng.choice((1, 2, 3, 8, 64))
        count = 1 << (rng.randrange(8) if rng.random() < 0.97 else rng.randrange(17))
        return body[:at] + body[at : at + size] * count + body[at + size :]

    @staticmethod
    def _length(rng: Random, body: bytes) -> bytes:
        """Write a number at a limit as binary lengths are, of 1 to 8 bytes."""
        size, at = rng.choice((1, 2, 4, 4, 8)), rng.randrange(len(body) + 1)
        number = rng.choice(LIMITS) % (1 << (8 * size))
        return body[:at] + number.to_bytes(size, rng.choice(("big", "big", "little"))) + body[at + size :]

    def _nest(self, rng: Random, body: bytes) -> bytes:
        at = rng.randrange(len(body) + 1)
        depth = rng.choice(DEPTHS if rng.random() < 0.02 else DEPTHS[:4])
        opens = rng.choice(self._opens)
        return body[:at] + opens * min(depth, 1 + INPUT_BYTES_MAX // len(opens)) + body[at:]
