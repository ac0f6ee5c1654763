"""Whether a replica holds what its owner holds, found out while clients write.

A stretch of entries is read at the owner, then at the replica once it has applied as much, then at the owner
again once that has applied as much as the replica. An entry that is the same in both answers of the owner,
and another one at the replica, differs, unless it changed and changed back meanwhile: so it has to be seen
ROUNDS_MAX times.

Copies lack entries that expired long ago, so expired ones do not count. When the owner is asked first, it
says by which time it left them out, and the answers that are compared with this one are for the same time.
"""

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stele.errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from stele.wire.admin import TabletChecksum

ROUNDS_MAX = 8
"""Rounds in which an entry has to differ, and after which one that is written all the time is given up."""
ROUND_SECONDS = 0.1
LAG_SECONDS_MAX = 30.0
"""Seconds that one side is waited for until it has applied what the other one has."""
LAG_POLL_SECONDS = 0.2

Ask = Callable[[str, dict[str, str]], Awaitable["TabletChecksum"]]
"""Asks a member, with a query. Without `now_ms` in it the answer says what time it is."""
Hashes = dict[str, str]


@dataclass
class Found:
    """Names of entries, in base64, of one replica. `busy` ones changed in each round."""

    different: list[str] = field(default_factory=list)
    busy: int = 0


@dataclass(frozen=True)
class Stretch:
    """Entries after one name up to another one; None is before all, or to the end."""

    after: str | None
    until: str | None

    def query(self, *, entries: bool) -> dict[str, str]:
        ends = {"after": self.after, "until": self.until}
        query = {name: text for name, text in ends.items() if text is not None}
        return query | ({"entries": "1"} if entries else {})


async def compare(ask: Ask, owner: str, replica: str, stretch: Stretch, first: "TabletChecksum") -> Found:
    """Compare a replica with what the owner answered first. Raises Unavailable for one that lags."""
    other = await _at_least(ask, replica, stretch.query(entries=False) | _time_of(first), first)
    if (other.entries, other.checksum) == (first.entries, first.checksum):
        return Found()
    different, wrong = await _round(ask, owner, replica, stretch)
    for number in range(1, ROUNDS_MAX):
        if not wrong:
            break
        await asyncio.sleep(ROUND_SECONDS * number)
        more = await _round(ask, owner, replica, stretch)
        different, wrong = different & more[0], wrong & more[1]
    return Found(sorted(different, key=name_of), len(wrong - different))


async def _round(ask: Ask, owner: str, replica: str, stretch: Stretch) -> tuple[set[str], set[str]]:
    """Return the entries that differ, and those together with what may only have changed meanwhile."""
    query = stretch.query(entries=True)
    before = await ask(owner, query)
    query |= _time_of(before)
    between = await _at_least(ask, replica, query, before)
    after = await _at_least(ask, owner, query, between)
    one, other, two = (dict(each.items) for each in (before, between, after))
    names = {
        name for name in one.keys() | other.keys() | two.keys() if _is_read(name, before, between, after)
    }
    wrong = {name for name in names if other.get(name) not in (one.get(name), two.get(name))}
    return {name for name in wrong if one.get(name) == two.get(name)}, wrong


def _time_of(answer: "TabletChecksum") -> dict[str, str]:
    """Return the part of a query that asks for the time of another answer."""
    return {"now_ms": str(answer.now_ms)}


def _is_read(name: str, *answers: "TabletChecksum") -> bool:
    """Return whether no answer ended before this name."""
    return all(not each.more or name_of(name) <= name_of(each.end) for each in answers)


async def _at_least(
    ask: Ask, member: str, query: dict[str, str], other: "TabletChecksum"
) -> "TabletChecksum":
    end = time.monotonic() + LAG_SECONDS_MAX
    while True:
        answer = await ask(member, query)
        if answer.applied.index >= other.applied.index:
            return answer
        if time.monotonic() > end:
            raise Unavailable(
                f"{member} has applied operation {answer.applied.index} of partition {answer.partition}, and "
                f"not {other.applied.index} within {LAG_SECONDS_MAX:g} s"
            )
        await asyncio.sleep(LAG_POLL_SECONDS)


def name_of(text: str) -> bytes:
    """Return the name of an entry: the length of its keyspace, the keyspace, and the key."""
    try:
        return base64.b64decode(text, b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise Corrupt(f"{text[:40]!r} is no name of an entry") from None
