"""The log of one partition as the engine has it."""

from bisect import bisect_left

from stele.core.tablet.log import Log
from stele.errors import Corrupt
from stele.member import limits
from stele.ports.engine import Engine
from stele.wire.storage import keys
from stele.wire.storage.log_record import term_of

SIZED_OPERATIONS = 64
"""Number of operations from which the bytes of a whole log are estimated."""

_INDEX_MAX = 2**64 - 1


def log_range(partition: int, first: int = 0) -> tuple[bytes, bytes]:
    """Return the log keys of one partition from `first` on."""
    return keys.log_key(partition, first), keys.log_key(partition, _INDEX_MAX)


def restore_log(engine: Engine, partition: int, applied: tuple[int, int]) -> Log:
    """Return the log of a tablet whose data ends with `applied`. Raises Corrupt when the two disagree."""
    bounds = engine.log_bounds(*log_range(partition))
    if bounds is None:
        return Log(applied)
    first, last = (int.from_bytes(key[2:], "big") for key in bounds)
    terms = _find_terms(engine, partition, first, last)
    return Log.restored(applied, first, last, terms, _log_bytes(engine, partition, first, last))


def _log_bytes(engine: Engine, partition: int, first: int, last: int) -> int:
    """Estimate the operations' bytes from the last ones: reading all would delay the start."""
    begin = keys.log_key(partition, max(first, last - SIZED_OPERATIONS + 1))
    some = engine.scan_log(begin, keys.log_key(partition, last + 1), limits.ENGINE_WRITE_BYTES_MAX)
    return sum(len(value) for _, value in some) * (last - first + 1) // max(1, len(some))


def _find_terms(engine: Engine, partition: int, first: int, last: int) -> list[tuple[int, int]]:
    """Return (first index of a term, term) pairs.

    Terms never decrease, so a bisection finds each boundary.
    """
    terms: list[tuple[int, int]] = []
    index = first
    while index <= last:
        term = _term_at(engine, partition, index)
        terms.append((index, term))
        index += bisect_left(range(index, last + 1), term + 1, key=lambda i: _term_at(engine, partition, i))
    return terms


def _term_at(engine: Engine, partition: int, index: int) -> int:
    record = engine.get_log(keys.log_key(partition, index))
    if record is None:
        raise Corrupt(f"partition {partition}: operation {index} is missing in the log")
    return int(term_of(record)[0])
