"""The Redis Cluster protocol, on a port of its own: CLUSTER, READONLY, ASKING, and redirections.

Clients learn here which member owns a slot, and send requests there without a hop. A request that comes to
another member is answered with MOVED once a published row names its owner; until then it waits, as on the
other port. There is no ASK, as a hand-over is one step (Redis Cluster specification, "MOVED Redirection").
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from stele.core.kv.cluster_map import ClusterMap, ClusterNode
from stele.core.kv.commands import READS, Failure
from stele.core.kv.keyslot import SLOTS, partition_in, slot_of
from stele.errors import Unavailable
from stele.member.resp.multi_key import keys_of
from stele.member.resp.subcommands import refusal_or_help
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
    read_port: int


def redirection(
    server: ClusterServer, keyspace: bytes, name: bytes, request: Request, *, reads_backups: bool = False
) -> Failure | None:
    """Return the error that sends a client elsewhere; None for a request that runs, or waits, here.

    `keyspace` is that of the connection, as in the map. Sharded channels are in its partitions, too: their
    messages go to all members.

    SUNSUBSCRIBE is never redirected: the reply is that the client is not subscribed here.
    Of a client that `reads_backups`, reads run here if this member is a backup: from here they are forwarded
    while its data is not recent enough, as the client's map is right.
    """
    group, slots = server.store.group(keyspace), {slot_of(key) for key in keys_of(name, request)}
    if len(slots) > 1:
        return CROSSSLOT
    if not slots or not group or name == b"SUNSUBSCRIBE":
        return None
    slot = slots.pop()
    partition = partition_in(group, slot)
    if reads_backups and (name in READS or name == b"MGET") and server.store.backs_up(partition):
        return None
    home = server.store.home(partition)
    if home is None:
        return None
    return Failure("MOVED", f"{slot} {home.host}:{home.port or server.cluster_port}")


def own_partitions(store: KeyValueService, group: range) -> list[int]:
    """Return those of the partitions that this member owns, in order."""
    table = store.cluster_map(group)
    ranges = [] if table.me is None else table.slots_of(table.me)
    begins_ends = ((partition_in(group, each.first), partition_in(group, each.last)) for each in ranges)
    return [partition for begin, end in begins_ends for partition in range(begin, end + 1)]


def cluster(server: ClusterServer, keyspace: bytes, request: Request) -> Answer:
    """Answer CLUSTER with one of its subcommands: the map is that of the connection's keyspace.

    Raises Unavailable while there is no table.
    """
    if (answer := refusal_or_help(request, _SUBCOMMANDS)) is not None:
        return answer
    group = server.store.group(keyspace)
    table = server.store.cluster_map(group)
    if table.me is None or not group:
        text = "this member has not received a partition table from the master yet; retry"
        raise Unavailable(text, code="LOADING")
    return _SUBCOMMANDS[request[1].upper()][1](table, server, request[2:])


def _slots(table: ClusterMap, server: ClusterServer, rest: Request) -> Answer:
    """Return each range with its owner and its backups.

    The other answers have owners only: in them, a replica is one of a single primary.
    """
    return [
        [
            each.first,
            each.last,
            _node(each.owner, server.cluster_port),
            *(_node(backup, server.read_port) for backup in each.backups),
        ]
        for each in table.ranges
    ]


def _node(node: ClusterNode, port: int) -> Answer:
    return [node.host.encode(), node.port or port, node.id.encode(), []]


def _shards(table: ClusterMap, server: ClusterServer, rest: Request) -> Answer:
    return [
        {
            b"slots": [slot for each in table.slots_of(node) for slot in (each.first, each.last)],
            b"nodes": [_shard_node(node, server.cluster_port)],
        }
        for node in table.nodes
    ]


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


def _nodes(table: ClusterMap, server: ClusterServer, rest: Request) -> Answer:
    return "".join(f"{_line(table, node, server.cluster_port)}\n" for node in table.nodes).encode()


def _line(table: ClusterMap, node: ClusterNode, port: int) -> str:
    flags = "myself,master" if node == table.me else "master"
    slots = "".join(f" {_range(each.first, each.last)}" for each in table.slots_of(node))
    port = node.port or port
    address = f"{node.host}:{port}@{port + BUS_PORT_OFFSET}"
    return f"{node.id} {address} {flags} - 0 0 {table.epoch} connected{slots}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _info(table: ClusterMap, server: ClusterServer, rest: Request) -> Answer:
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


def _my_id(table: ClusterMap, server: ClusterServer, rest: Request) -> Answer:
    return None if table.me is None else table.me.id.encode()


def _key_slot(table: ClusterMap, server: ClusterServer, rest: Request) -> Answer:
    return slot_of(rest[0])


# Name -> (arity as in Redis, the command included; handler).
_SUBCOMMANDS: dict[bytes, tuple[int, Callable[[ClusterMap, ClusterServer, Request], Answer]]] = {
    b"INFO": (2, _info),
    b"KEYSLOT": (3, _key_slot),
    b"MYID": (2, _my_id),
    b"NODES": (2, _nodes),
    b"SHARDS": (2, _shards),
    b"SLOTS": (2, _slots),
}
