"""The Redis Cluster protocol, on a port of its own: CLUSTER, READONLY, ASKING, and redirections.

Clients learn here which member owns a slot, and send requests there without a hop. A request that comes to
another member is answered with MOVED once a published row names its owner; until then it waits, as on the
other port. There is no ASK, as a hand-over is one step (Redis Cluster specification, "MOVED Redirection").
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from stele.core.kv.cluster_map import ClusterMap, ClusterNode
from stele.core.kv.commands import Failure, text_of, wrong_number
from stele.core.kv.keyslot import SLOTS, slot_of
from stele.errors import Unavailable
from stele.member.resp.multi_key import keys_of
from stele.ports.key_value_service import KeyValueService
from stele.wire.resp import Answer, Request

BUS_PORT_OFFSET = 10_000
"""The port of Redis' cluster bus is that of clients plus this. CLUSTER NODES names it; nothing listens."""

DISABLED = Failure("ERR", "This instance has cluster support disabled: use port 6380")
CROSSSLOT = Failure("CROSSSLOT", "Keys in request don't hash to the same slot")


class ClusterServer(Protocol):
    """The part of the RESP server that these commands use."""

    store: KeyValueService
    cluster_port: int


def redirection(server: ClusterServer, name: bytes, request: Request) -> Failure | None:
    """Return the error that sends a client elsewhere; None for a request that runs, or waits, here."""
    partitions, slots = server.store.partitions, {slot_of(key) for key in keys_of(name, request)}
    if len(slots) > 1:
        return CROSSSLOT
    if not slots or not partitions:
        return None
    slot = slots.pop()
    host = server.store.home(slot * partitions // SLOTS)
    return Failure("MOVED", f"{slot} {host}:{server.cluster_port}") if host else None


def own_partitions(store: KeyValueService) -> list[int]:
    """Return the partitions that this member owns, in order."""
    table, partitions = store.cluster_map(), store.partitions
    ranges = [] if table.me is None else table.slots_of(table.me)
    begins_ends = ((each.first * partitions // SLOTS, each.last * partitions // SLOTS) for each in ranges)
    return [partition for begin, end in begins_ends for partition in range(begin, end + 1)]


def cluster(server: ClusterServer, request: Request) -> Answer:
    """Answer CLUSTER with one of its subcommands. Raises Unavailable while there is no table."""
    name, rest = request[1].upper(), request[2:]
    known = _SUBCOMMANDS.get(name)
    if known is None:
        offered = ", ".join(each.decode() for each in sorted(_SUBCOMMANDS))
        return Failure("ERR", f"unknown subcommand '{text_of(request[1])}'; expected {offered}")
    arguments, run = known
    if len(rest) != arguments:
        return wrong_number(b"cluster|" + name.lower())
    table = server.store.cluster_map()
    if table.me is None or not server.store.partitions:
        text = "this member has not received a partition table from the master yet; retry"
        raise Unavailable(text, code="LOADING")
    return run(table, server.cluster_port, rest)


def _slots(table: ClusterMap, port: int, rest: Request) -> Answer:
    return [
        [each.first, each.last, [each.owner.host.encode(), port, each.owner.id.encode(), []]]
        for each in table.ranges
    ]


def _shards(table: ClusterMap, port: int, rest: Request) -> Answer:
    return [
        {
            b"slots": [slot for each in table.slots_of(node) for slot in (each.first, each.last)],
            b"nodes": [_shard_node(node, port)],
        }
        for node in table.nodes
    ]


def _shard_node(node: ClusterNode, port: int) -> Mapping[bytes, Answer]:
    host = node.host.encode()
    return {
        b"id": node.id.encode(),
        b"port": port,
        b"ip": host,
        b"endpoint": host,
        b"role": b"master",
        b"replication-offset": 0,
        b"health": b"online",
    }


def _nodes(table: ClusterMap, port: int, rest: Request) -> Answer:
    return "".join(f"{_line(table, node, port)}\n" for node in table.nodes).encode()


def _line(table: ClusterMap, node: ClusterNode, port: int) -> str:
    flags = "myself,master" if node == table.me else "master"
    slots = "".join(f" {_range(each.first, each.last)}" for each in table.slots_of(node))
    address = f"{node.host}:{port}@{port + BUS_PORT_OFFSET}"
    return f"{node.id} {address} {flags} - 0 0 {table.epoch} connected{slots}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _info(table: ClusterMap, port: int, rest: Request) -> Answer:
    assigned = table.assigned
    facts = {
        "cluster_state": "ok" if assigned == SLOTS else "fail",
        "cluster_slots_assigned": assigned,
        "cluster_slots_ok": assigned,
        "cluster_slots_pfail": 0,
        "cluster_slots_fail": 0,
        "cluster_known_nodes": len(table.nodes),
        "cluster_size": len({each.owner for each in table.ranges}),
        "cluster_current_epoch": table.epoch,
        "cluster_my_epoch": table.epoch,
    }
    return "".join(f"{key}:{value}\r\n" for key, value in facts.items()).encode()


def _my_id(table: ClusterMap, port: int, rest: Request) -> Answer:
    return None if table.me is None else table.me.id.encode()


def _key_slot(table: ClusterMap, port: int, rest: Request) -> Answer:
    return slot_of(rest[0])


_SUBCOMMANDS: dict[bytes, tuple[int, Callable[[ClusterMap, int, Request], Answer]]] = {
    b"INFO": (0, _info),
    b"KEYSLOT": (1, _key_slot),
    b"MYID": (0, _my_id),
    b"NODES": (0, _nodes),
    b"SHARDS": (0, _shards),
    b"SLOTS": (0, _slots),
}
