"""What CLUSTER SLOTS, SHARDS, NODES and INFO answer: encoded once for each map.

With 16,384 partitions an answer has 4 MB and takes a tenth of a second, so it is made in pieces of a turn.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from stele.core.kv.cluster_map import ClusterMap, ClusterNode, SlotRange, extend, text_of
from stele.core.kv.keyslot import SLOTS
from stele.member.turn_budget import TurnBudget
from stele.wire.resp import Answer, Encoded, encode_reply

PIECE_ROWS = 64
"""Rows of the table that are looked at in one step; each counts as an entry of the turn."""
BUS_PORT_OFFSET = 10_000
"""The port of Redis' cluster bus is that of clients plus this. CLUSTER NODES names it; nothing listens."""


class Ports(NamedTuple):
    """The ports of owners, and of backups, where members announce none."""

    cluster: int
    read: int


_Key = tuple[bytes, Ports, bool]
_Made = dict[_Key, asyncio.Task[bytes]]


class ClusterAnswers:
    """The encoded answers for maps that are in use: a map that is gone takes its answers along."""

    def __init__(self, turn_budget: TurnBudget) -> None:
        self._turn_budget = turn_budget
        self._made: WeakKeyDictionary[ClusterMap, _Made] = WeakKeyDictionary()

    async def of(self, table: ClusterMap, name: bytes, ports: Ports, *, resp3: bool) -> Encoded:
        """Return the answer to a subcommand of `ENCODERS`, for all who ask for it.

        One that cannot be made is made again for the next that asks.
        """
        made, key = self._made.setdefault(table, {}), (name, ports, resp3)
        if key not in made:
            task = made[key] = asyncio.create_task(self._encode(ENCODERS[name](table, ports, resp3)))
            task.add_done_callback(partial(_drop_failed, made, key))
        return Encoded(await asyncio.shield(made[key]))

    async def _encode(self, pieces: Iterator[bytes]) -> bytes:
        done, step = list[bytes](), partial(next, pieces, None)
        while (piece := await self._turn_budget.run(PIECE_ROWS, step)) is not None:
            done.append(piece)
        return b"".join(done)


def _drop_failed(made: _Made, key: _Key, task: asyncio.Task[bytes]) -> None:
    if task.cancelled() or task.exception() is not None:
        del made[key]


def _slots(table: ClusterMap, ports: Ports, resp3: bool) -> Iterator[bytes]:
    """Encode each range with its owner and its backups.

    The other answers have owners only: in them, a replica is one of a single primary.
    """
    count, done = 0, list[bytes]()
    for some in table.pieces(PIECE_ROWS):
        count += len(some)
        done.append(_encoded([_slot_range(each, ports) for each in some], resp3, many=True))
        yield b""
    yield b"*%d\r\n%b" % (count, b"".join(done))


def _slot_range(each: SlotRange, ports: Ports) -> Sequence[Answer]:
    backups = (_node(backup, ports.read) for backup in each.backups)
    return [each.first, each.last, _node(each.owner, ports.cluster), *backups]


def _node(node: ClusterNode, port: int) -> Sequence[Answer]:
    return [node.host.encode(), node.port or port, node.id.encode(), []]


def _shards(table: ClusterMap, ports: Ports, resp3: bool) -> Iterator[bytes]:
    owned = _Owned(table)
    yield from owned.find()
    yield b"*%d\r\n" % len(owned.ranges)
    for node in sorted(owned.ranges):
        slots = [slot for first_last in owned.ranges[node] for slot in first_last]
        yield b"%b\r\n$5\r\nslots\r\n*%d\r\n" % (b"%2" if resp3 else b"*4", len(slots))
        for begin in range(0, len(slots), 2 * PIECE_ROWS):
            yield _encoded(slots[begin : begin + 2 * PIECE_ROWS], resp3, many=True)
        yield _encoded([b"nodes", [_shard_node(node, ports.cluster)]], resp3, many=True)


def _shard_node(node: ClusterNode, port: int) -> Mapping[bytes, Answer]:
    host = node.host.encode()
    return {
        b"id": node.id.encode(),
        b"port": node.port or port,
        b"ip": host,
        b"endpoint": host,
        b"role": b"master",
        b"replication-offset": 0,
        b"health": b"online",
    }


def _nodes(table: ClusterMap, ports: Ports, resp3: bool) -> Iterator[bytes]:
    owned, parts = _Owned(table), list[bytes]()
    yield from owned.find()
    for node in sorted(owned.ranges):
        parts.append(_line(table, node, ports.cluster))
        for begin in range(0, len(owned.ranges[node]), PIECE_ROWS):
            some = owned.ranges[node][begin : begin + PIECE_ROWS]
            parts.append("".join(f" {text_of(*each)}" for each in some).encode())
            yield b""
        parts.append(b"\n")
    yield _encoded(b"".join(parts), resp3)


def _line(table: ClusterMap, node: ClusterNode, port: int) -> bytes:
    flags, port = "myself,master" if node == table.me else "master", node.port or port
    address = f"{node.host}:{port}@{port + BUS_PORT_OFFSET}"
    return f"{node.id} {address} {flags} - 0 0 {table.epoch} connected".encode()


def _info(table: ClusterMap, ports: Ports, resp3: bool) -> Iterator[bytes]:
    owned = _Owned(table)
    yield from owned.find()
    facts = {
        "cluster_state": "ok" if owned.slots == SLOTS else "fail",
        "cluster_slots_assigned": owned.slots,
        "cluster_slots_ok": owned.slots,
        "cluster_slots_pfail": 0,
        "cluster_slots_fail": 0,
        "cluster_known_nodes": len(owned.ranges),
        "cluster_size": sum(map(bool, owned.ranges.values())),
        "cluster_current_epoch": table.epoch,
        "cluster_my_epoch": table.epoch,
    }
    yield _encoded("".join(f"{key}:{value}\r\n" for key, value in facts.items()).encode(), resp3)


class _Owned:
    """All owners and this member, with what they own: (first slot, last slot), without regard to backups."""

    def __init__(self, table: ClusterMap) -> None:
        self._table = table
        self.ranges: dict[ClusterNode, list[tuple[int, int]]] = {} if table.me is None else {table.me: []}
        self.slots = 0

    def find(self) -> Iterator[bytes]:
        """Fill it, piece by piece; nothing is encoded."""
        for some in self._table.pieces(PIECE_ROWS):
            for each in some:
                extend(self.ranges.setdefault(each.owner, []), each.first, each.last)
                self.slots += each.last - each.first + 1
            yield b""


def _encoded(reply: Answer, resp3: bool, *, many: bool = False) -> bytes:
    """Encode a reply, or `many` without a head."""
    out: list[bytes] = []
    encode_reply(reply, out, resp3)
    return b"".join(out[1:] if many else out)


ENCODERS: Mapping[bytes, Callable[[ClusterMap, Ports, bool], Iterator[bytes]]] = {
    b"INFO": _info,
    b"NODES": _nodes,
    b"SHARDS": _shards,
    b"SLOTS": _slots,
}
