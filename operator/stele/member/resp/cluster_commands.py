"""The Redis Cluster protocol, on a port of its own: CLUSTER, READONLY, ASKING, and redirections.

Clients learn here which member owns a slot, and send requests there without a hop. A request that comes to
another member is answered with MOVED once a published row names its owner; until then it waits, as on the
other port. There is no ASK, as a hand-over is one step (Redis Cluster specification, "MOVED Redirection").
"""

from typing import Protocol

from stele.core.kv.commands import READS, Failure
from stele.core.kv.keyslot import partition_in, slot_of
from stele.errors import Unavailable
from stele.member.resp.cluster_answers import ENCODERS, ClusterAnswers, Ports
from stele.member.resp.multi_key import keys_of
from stele.member.resp.subcommands import refusal_or_help
from stele.ports.key_value_service import KeyValueService
from stele.wire.resp import Answer, Request

DISABLED = Failure("ERR", "This instance has cluster support disabled: use port 6380")
CROSSSLOT = Failure("CROSSSLOT", "Keys in request don't hash to the same slot")


class ClusterServer(Protocol):
    """The part of the RESP server that these commands use."""

    store: KeyValueService
    cluster_answers: ClusterAnswers
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
    return [group.start + position for position in store.cluster_map(group).own]


async def cluster(server: ClusterServer, keyspace: bytes, request: Request, *, resp3: bool) -> Answer:
    """Answer CLUSTER with one of its subcommands: the map is that of the connection's keyspace.

    Raises Unavailable while there is no table.
    """
    if (answer := refusal_or_help(request, _ARITIES)) is not None:
        return answer
    name, group = request[1].upper(), server.store.group(keyspace)
    table = server.store.cluster_map(group)
    if table.me is None or not group:
        text = "this member has not received a partition table from the master yet; retry"
        raise Unavailable(text, code="LOADING")
    if name == b"MYID":
        return table.me.id.encode()
    if name == b"KEYSLOT":
        return slot_of(request[2])
    return await server.cluster_answers.of(
        table, name, Ports(server.cluster_port, server.read_port), resp3=resp3
    )


_ARITIES = {b"KEYSLOT": (3, None), b"MYID": (2, None), **dict.fromkeys(ENCODERS, (2, None))}
"""As in Redis, the command included."""
