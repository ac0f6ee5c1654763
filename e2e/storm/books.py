"""What is known of each key, and what an answer may be. Pure, so that tests can break every rule on purpose.

A key has one writer. *Counters* are incremented, and every answer is checked: an increment of which nobody
knows whether it was done may be done at any later time, so what the counter may be is a range. *Registers*
take numbered values (`e2e.demo.history`), and are written no more after a write of which nobody knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from e2e.demo.history import Breach, Ledger, Outcome, Violation, value_of

DIGITS_MAX = 18
LARGE_BYTES = (20_000, 100_000, 300_000)


@dataclass
class _Counter:
    """`floor` is the greatest value that was answered to anybody, `counted` the greatest to an increment."""

    floor: int = 0
    counted: int = 0
    acknowledged: int = 0
    doubtful: int = 0
    under_way: int = 0


class Counters:
    """Keys that are incremented, each by one writer, whose increments are done in the order they are sent."""

    def __init__(self) -> None:
        self._keys: dict[str, _Counter] = {}

    def keys(self) -> tuple[str, ...]:
        """All keys that were sent to."""
        return tuple(self._keys)

    def floor(self, key: str) -> int:
        """What a read that is sent now must at least give."""
        return self._keys[key].floor if key in self._keys else 0

    def send(self, key: str) -> int:
        """An increment is sent; gives the floor that its answer must exceed."""
        known = self._keys.setdefault(key, _Counter())
        known.under_way += 1
        return known.floor

    def end(self, key: str, floor: int, outcome: Outcome, value: object = None) -> Violation | None:
        """How an increment ended that was sent at `floor`; an acknowledged one with the `value` answered."""
        known = self._keys[key]
        known.under_way -= 1
        if outcome is Outcome.DOUBTFUL:
            known.doubtful += 1
        if outcome is not Outcome.ACKNOWLEDGED:
            return None
        known.acknowledged += 1
        if not isinstance(value, int):
            return Violation(Breach.GARBLED, key, f"an increment gave {value!r:.80}, which is no number")
        least, most = max(floor, known.counted) + 1, known.acknowledged + known.doubtful
        known.floor, known.counted = max(known.floor, value), max(known.counted, value)
        return _outside(key, "an increment", value, least, most)

    def judge(self, key: str, floor: int, value: bytes | None) -> Violation | None:
        """Check a read that was sent when `floor(key)` was `floor`; what it shows counts from now on."""
        known = self._keys.get(key, _Counter())
        digits = b"0" if value is None else value
        if not digits.isdigit() or len(digits) > DIGITS_MAX:
            return Violation(Breach.GARBLED, key, f"read {digits[:80]!r}, which is no number")
        number = int(digits)
        known.floor = max(known.floor, number)
        return _outside(key, "a read", number, floor, self._most(known))

    @staticmethod
    def _most(known: _Counter) -> int:
        return known.acknowledged + known.doubtful + known.under_way

    def allowed(self, key: str) -> Iterator[bytes | None]:
        """What may be stored once no increment is under way."""
        known = self._keys[key]
        for number in range(known.floor, self._most(known) + 1):
            yield b"%d" % number if number else None


def _outside(key: str, what: str, value: int, least: int, most: int) -> Violation | None:
    if value < least:
        return Violation(Breach.LOST, key, f"{what} gave {value}, at least {least} was needed")
    if value > most:
        return Violation(Breach.NEVER_SENT, key, f"{what} gave {value}, {most} could be there at most")
    return None


def packed(key: str, number: int) -> bytes:
    """The value of write `number` of a register: that of the ledger, and filler for large keys."""
    head = value_of(key, number)
    return head + _filler(key, head)


def unpacked(key: str, value: bytes | None) -> bytes | None:
    """The ledger's part of a register's value; all of it when the filler is not what was written."""
    if value is None:
        return None
    length = large_bytes(key)
    head = value[: len(value) - length] if length else value
    return head if value == head + _filler(key, head) else value


def large_bytes(key: str) -> int:
    """How much filler the values of a key have: by its name, and none for most."""
    _, kind, _, slot, *_ = key.split(":")
    return LARGE_BYTES[int(slot) % len(LARGE_BYTES)] if kind == "large" else 0


def _filler(key: str, head: bytes) -> bytes:
    return hashlib.shake_128(head).digest(large_bytes(key))


@dataclass
class Books:
    """Counters and registers together. A key is `storm:KIND:CLIENT:SLOT:GENERATION`."""

    counters: Counters
    registers: Ledger

    @classmethod
    def empty(cls) -> Books:
        return cls(Counters(), Ledger())

    def keys(self) -> tuple[str, ...]:
        """All keys that were sent to."""
        return self.counters.keys() + self.registers.keys()

    def floor(self, key: str) -> int:
        """What a read that is sent now must at least show."""
        return self.counters.floor(key) if is_counter(key) else self.registers.floor(key)

    def judge(self, key: str, floor: int, value: bytes | None) -> Violation | None:
        """Check a read that was sent at `floor`."""
        if is_counter(key):
            return self.counters.judge(key, floor, value)
        return self.registers.judge(key, floor, unpacked(key, value))

    def allowed(self, key: str) -> Iterator[bytes | None]:
        """The values that may be stored once nobody writes."""
        if is_counter(key):
            yield from self.counters.allowed(key)
            return
        for number in self.registers.allowed(key):
            yield packed(key, number) if number else None


def is_counter(key: str) -> bool:
    """Whether the key is incremented."""
    return key.split(":")[1] in ("count", "once")
