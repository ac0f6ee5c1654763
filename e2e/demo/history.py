"""What one writer per key wrote and what readers may see of it; pure, so that it can be broken on purpose in
tests.

Each key has one writer, which sends one write at a time and numbers them 1, 2, 3, ... A write ends as
*acknowledged*, *refused* (an answer that says it did not happen) or *doubtful* (nobody knows). After a
doubtful write the key is retired: it is read and checked, but never written again. With this discipline a
history is linearizable if and only if every read gives a number that is neither below what was acknowledged
or read when it was sent, nor refused, nor never sent; so the check at each read is exact, and needs no
search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PAD_BYTES = 96


class Outcome(StrEnum):
    """How a write ended; the letters are those of the history file. SENT: not yet, or the writer was
    killed.
    """

    SENT = "S"
    ACKNOWLEDGED = "A"
    REFUSED = "F"
    DOUBTFUL = "M"
    OBSERVED = "O"


class Breach(StrEnum):
    """Which rule a read broke."""

    LOST = "acknowledged write is missing"
    STALE = "read is older than what was acknowledged or read before it"
    REFUSED = "a write that was refused is visible"
    NEVER_SENT = "a write that was never sent is visible"
    GARBLED = "the value is not what was written"


@dataclass(frozen=True)
class Violation:
    """One broken rule: the key, and what was expected and found."""

    breach: Breach
    key: str
    detail: str


@dataclass
class _Key:
    sent: int = 0
    floor: int = 0
    acknowledged: int = 0
    doubtful: int = 0
    refused: set[int] = field(default_factory=set)


def value_of(key: str, number: int) -> bytes:
    """The value of write `number` of a key: both readable, then padding that depends on them."""
    head = f"{key}:{number}:"
    return (head + (head * PAD_BYTES)[:PAD_BYTES]).encode()


def number_of(key: str, value: bytes) -> int | None:
    """The number in a value of this key; None when it is not exactly what `value_of` makes."""
    prefix = f"{key}:".encode()
    digits = value[len(prefix) :].split(b":", 1)[0]
    if not value.startswith(prefix) or not digits.isdigit() or len(digits) > 18:
        return None
    number = int(digits)
    return number if value == value_of(key, number) else None


class Ledger:
    """What is known of each key. Number 0 stands for "never written"."""

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}

    def keys(self) -> tuple[str, ...]:
        """All keys that were sent to, in the order of their first write."""
        return tuple(self._keys)

    @property
    def acknowledged_writes(self) -> int:
        """Number of acknowledged writes."""
        return sum(known.acknowledged for known in self._keys.values())

    @property
    def doubtful_writes(self) -> int:
        """Number of writes of which nobody knows whether they happened."""
        return sum(known.doubtful > 0 for known in self._keys.values())

    def send(self, key: str) -> int:
        """The number of the next write of this key; raises ValueError for a retired key."""
        known = self._keys.setdefault(key, _Key())
        if known.doubtful:
            raise ValueError(f"{key} is retired: its write {known.doubtful} is doubtful")
        known.sent += 1
        return known.sent

    def end(self, key: str, number: int, outcome: Outcome) -> None:
        """Record how the write that was sent last ended."""
        known = self._keys[key]
        if outcome is Outcome.ACKNOWLEDGED:
            known.acknowledged += 1
            known.floor = max(known.floor, number)
        elif outcome is Outcome.REFUSED:
            known.refused.add(number)
        elif outcome is Outcome.DOUBTFUL:
            known.doubtful = number
        elif outcome is Outcome.OBSERVED:
            known.floor = max(known.floor, number)

    def retired(self, key: str) -> bool:
        """Whether nothing may be written to the key any more."""
        return key in self._keys and self._keys[key].doubtful > 0

    def floor(self, key: str) -> int:
        """The greatest number that was acknowledged or read: what a read that is sent now must at least
        give.
        """
        return self._keys[key].floor if key in self._keys else 0

    def judge(self, key: str, floor: int, value: bytes | None) -> Violation | None:
        """Check a read of `key` that was sent when `floor(key)` was `floor`; what it shows counts from now
        on.
        """
        if value is None:
            return self._judge_missing(key, floor)
        number = number_of(key, value)
        if number is None:
            return Violation(Breach.GARBLED, key, f"read {value[:80]!r} ({len(value)} bytes)")
        known = self._keys.get(key, _Key())
        if number > known.sent or number == 0:
            return Violation(Breach.NEVER_SENT, key, f"read {number}, sent up to {known.sent}")
        if number in known.refused:
            return Violation(Breach.REFUSED, key, f"read {number}, which was refused")
        if number < floor:
            return Violation(Breach.STALE, key, f"read {number}, at least {floor} was needed")
        known.floor = max(known.floor, number)
        return None

    def _judge_missing(self, key: str, floor: int) -> Violation | None:
        if floor == 0:
            return None
        return Violation(Breach.LOST, key, f"nothing is stored, at least number {floor} was needed")

    def allowed(self, key: str) -> frozenset[int]:
        """The numbers that may be stored once no writer runs: the last known one, or a doubtful later one."""
        known = self._keys.get(key, _Key())
        numbers = {known.floor}
        if known.doubtful > known.floor:
            numbers.add(known.doubtful)
        return frozenset(numbers)


def replay(lines: Iterable[str]) -> Ledger:
    """The ledger of a history file (lines `LETTER KEY NUMBER`); writes without an end are doubtful.

    A last line that was cut off (the writer was killed) is left out, any other bad line raises ValueError.
    """
    ledger = Ledger()
    pending: dict[str, int] = {}
    for line in lines:
        if not line.endswith("\n"):
            break
        letter, key, number_text = line.split()
        outcome, number = Outcome(letter), int(number_text)
        if outcome is Outcome.SENT:
            if ledger.send(key) != number:
                raise ValueError(f"the history leaves out a write of {key} before {number}")
            pending[key] = number
        else:
            ledger.end(key, number, outcome)
            if outcome is not Outcome.OBSERVED:
                pending.pop(key, None)
    for key, number in pending.items():
        ledger.end(key, number, Outcome.DOUBTFUL)
    return ledger


def judge_end(ledger: Ledger, stored: Mapping[str, bytes | None]) -> list[Violation]:
    """Check what one complete read of all keys gave after the last write; `stored` must have every key."""
    found = []
    for key in ledger.keys():  # noqa: SIM118 - a ledger is no dict
        value = stored.get(key)
        violation = ledger.judge(key, ledger.floor(key), value)
        if violation:
            found.append(violation)
    return found
