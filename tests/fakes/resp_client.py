"""A client of RESP2 and RESP3 that hides nothing: replies as they come, and pushes among them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pushed:
    """A message that is no reply."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Error:
    text: str


class Replies:
    """Turns bytes into replies: errors as Error, maps as lists of pairs, sets as lists."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[Any]:
        self._data += data
        found = []
        while True:
            try:
                value, at = _value(self._data, 0)
            except _IncompleteError:
                return found
            self._data = self._data[at:]
            found.append(value)


class _IncompleteError(Exception):
    pass


def _value(data: bytes, at: int) -> tuple[Any, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _IncompleteError
    kind, line, at = data[at : at + 1], data[at + 1 : end], end + 2
    if kind in b"+-_":
        return {b"+": line.decode(), b"-": Error(line.decode()), b"_": None}[kind], at
    number = int(line)
    if kind == b":" or number < 0:
        return (number if kind == b":" else None), at
    if kind == b"$":
        if len(data) < at + number + 2:
            raise _IncompleteError
        return data[at : at + number], at + number + 2
    items = []
    for _ in range(2 * number if kind == b"%" else number):
        item, at = _value(data, at)
        items.append(item)
    if kind == b">":
        return Pushed(tuple(items)), at
    assert kind in b"*~%", kind
    return (sorted(zip(items[::2], items[1::2], strict=True)) if kind == b"%" else items), at
