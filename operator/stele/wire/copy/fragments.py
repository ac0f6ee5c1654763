"""Keys of each fragment of a tablet, and positions in a copy.

The plan depends on the tablet's own state alone, so a source always computes the same one.
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
"""Neighbouring fragments of at most this size together travel as one."""

FIRST = "0"
"""Position at the start of a copy."""

Range = tuple[bytes, bytes]
"""Half-open: [begin, end)."""

_PLACE = re.compile(r"([0-9]{1,5})(?:\.((?:[0-9a-f]{2}){1,65535}))?")


@dataclass(frozen=True, slots=True)
class Planned:
    """One fragment: its keyspaces and key ranges, ascending."""

    namespaces: tuple[bytes, ...]
    ranges: tuple[Range, ...]


def service_keyspace(service: str, namespace: str = "") -> bytes:
    """Return the keyspace of a service, or of one of its namespaces."""
    name = SERVICE_MARK + service.encode()
    return name + b"/" + namespace.encode() if namespace else name


def travels_alone(keyspace: bytes) -> bool:
    """Return whether the keyspace is its own fragment: those of users, and each namespace of a service."""
    return not is_service(keyspace) or b"/" in keyspace


def plan(partition: int, generation: int, keyspaces: Mapping[bytes, tuple[int, int]]) -> list[Planned]:
    """Return the fragments of a tablet, at least one. Every key is in exactly one of them.

    `keyspaces` maps the tablet's keyspaces to entries and bytes. The tablet's own state is in the last
    fragment; keys that no other fragment claims are in the first.
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
    taken[0] += _rest(
        tablet_range(partition, generation), [key_range for ranges_of in taken for key_range in ranges_of]
    )
    return [
        Planned(fragment, tuple(_joined(sorted(ranges))))
        for fragment, ranges in zip(fragments, taken, strict=True)
    ]


def whole(partition: int, generation: int, keyspaces: Collection[bytes]) -> Planned:
    """Return the tablet as one fragment."""
    return Planned(tuple(sorted(keyspaces)), (tablet_range(partition, generation),))


def _range_of(partition: int, generation: int, keyspace: bytes) -> Range:
    begin = user_prefix(partition, generation, keyspace)
    return begin, after_prefix(begin)


def _rest(all_of: Range, taken: Iterable[Range]) -> list[Range]:
    """Return the parts of a range that the others leave."""
    begin, end = all_of
    left: list[Range] = []
    for first, behind in sorted(taken):
        if begin < first:
            left.append((begin, first))
        begin = behind
    return [*left, (begin, end)] if begin < end else left


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Join adjacent ranges: each range costs a seek."""
    joined: list[Range] = []
    for begin, end in ranges:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def place_text(fragment: int, key: bytes = b"") -> str:
    """Format the position before `key` of a fragment, or at its begin."""
    return f"{fragment}.{key.hex()}" if key else str(fragment)


def read_place(text: str) -> tuple[int, bytes]:
    """Parse a position into the fragment's number and the next key (empty at its begin). Raises BadInput."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise BadInput(
            f"at is '{text[:80]}', expected the number of a fragment, followed by a dot and a key in "
            "hexadecimal digits when it was begun: use the `next` of the previous fragment"
        )
    return int(match[1]), bytes.fromhex(match[2] or "")
