"""Which keys of a tablet each of its fragments holds, and the place in a tablet that a copy has come to.

The plan follows from the tablet's own state alone, so a source makes the same one whenever it is asked.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stele.core.copy.fragments import gather, group
from stele.errors import BadInput
from stele.wire.storage.keys import (
    META,
    SERVICE_MARK,
    USER,
    after_prefix,
    is_service,
    tablet_prefix,
    tablet_range,
    user_prefix,
)

GATHERED_BYTES = 1024 * 1024
"""Neighbouring fragments that hold no more than so much together travel as one."""

FRAGMENT_BYTES = 64 * 1024 * 1024
"""A fragment is sent in pieces of about so much: what a retry repeats, and what others wait for at most."""

FIRST = "0"
"""Where a copy begins."""

Range = tuple[bytes, bytes]
"""Half-open: [begin, end)."""

_PLACE = re.compile(r"([0-9]{1,5})(?:\.((?:[0-9a-f]{2}){1,65535}))?")


@dataclass(frozen=True, slots=True)
class Planned:
    """One fragment: the keyspaces that it holds, and where, ascending."""

    namespaces: tuple[bytes, ...]
    ranges: tuple[Range, ...]


def service_keyspace(service: str, namespace: str = "") -> bytes:
    """The keyspace of a service that has no namespaces, or of one namespace of it."""
    name = SERVICE_MARK + service.encode()
    return name + b"/" + namespace.encode() if namespace else name


def travels_alone(keyspace: bytes) -> bool:
    """Whether it is a fragment of its own: what users store is, and each namespace of a service."""
    return not is_service(keyspace) or b"/" in keyspace


def plan(partition: int, generation: int, keyspaces: Mapping[bytes, tuple[int, int]]) -> list[Planned]:
    """The fragments of a tablet, at least one. Every key of the tablet is in exactly one of them.

    `keyspaces` is what the tablet says of itself: entries and bytes of each. The tablet's own state is in the
    last one, and what no fragment claims, named or not, in the first.
    """
    names = sorted(keyspaces, key=lambda name: (len(name), name))
    fragments = gather(group(names, travels_alone), lambda name: keyspaces[name][1], GATHERED_BYTES)
    if not fragments or len(fragments) == 1:
        return [Planned(tuple(names), (tablet_range(partition, generation),))]
    taken = [
        [_range_of(partition, generation, name) for name in fragment if travels_alone(name)]
        for fragment in fragments
    ]
    head = tablet_prefix(partition, generation)
    taken[-1].append((head + bytes((META,)), head + bytes((USER,))))
    taken[0] += _rest(tablet_range(partition, generation), [each for some in taken for each in some])
    return [
        Planned(fragment, tuple(_joined(sorted(ranges))))
        for fragment, ranges in zip(fragments, taken, strict=True)
    ]


def whole(partition: int, generation: int, keyspaces: Collection[bytes]) -> Planned:
    """The tablet as one fragment."""
    return Planned(tuple(sorted(keyspaces)), (tablet_range(partition, generation),))


def _range_of(partition: int, generation: int, keyspace: bytes) -> Range:
    begin = user_prefix(partition, generation, keyspace)
    return begin, after_prefix(begin)


def _rest(all_of: Range, taken: Iterable[Range]) -> list[Range]:
    """What of one range the others leave."""
    begin, end = all_of
    left: list[Range] = []
    for first, behind in sorted(taken):
        if begin < first:
            left.append((begin, first))
        begin = behind
    return [*left, (begin, end)] if begin < end else left


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges that touch, as one: each costs a seek."""
    made: list[Range] = []
    for begin, end in ranges:
        if made and made[-1][1] == begin:
            made[-1] = (made[-1][0], end)
        else:
            made.append((begin, end))
    return made


def place_text(fragment: int, key: bytes = b"") -> str:
    """The place before `key` of a fragment, or at its begin."""
    return f"{fragment}.{key.hex()}" if key else str(fragment)


def read_place(text: str) -> tuple[int, bytes]:
    """(number of the fragment, key that comes next or nothing). Raise BadInput."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise BadInput(
            f"at is '{text[:80]}', expected the number of a fragment, and a key in hexadecimal digits behind "
            "a dot when it was begun already: ask for what the fragment before said comes next"
        )
    return int(found[1]), bytes.fromhex(found[2] or "")
