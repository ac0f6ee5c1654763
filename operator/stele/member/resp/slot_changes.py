"""CLIENT MAINT_NOTIFICATIONS: messages to cluster clients that ask for them, when slots get another owner.

A client then reads the map again before a request of its own is redirected.
"""

import asyncio
from typing import Protocol

from stele.core.kv.cluster_map import ClusterMap, ClusterNode, moved_slots
from stele.member.resp.pubsub import Connection
from stele.ports.key_value_service import KeyValueService
from stele.wire.resp import encode_push

SMIGRATED = "SMIGRATED"

LOOK_SECONDS = 0.5
"""Interval at which the map is compared; all that changed within one is sent as one message."""


class Client(Protocol):
    """The part of a client's session that is used here."""

    id: int
    keyspace: bytes

    @property
    def connection(self) -> Connection | None: ...


class Server(Protocol):
    """The part of the RESP server that is used here."""

    store: KeyValueService
    cluster_port: int


class SlotChanges:
    """Sends the clients that asked for it `SMIGRATED epoch [[from, to, slots], ...]`.

    The epoch is that of the map, so members that have the same table give the message the same number, and a
    client acts on it once. Maps are only compared while clients ask for it.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clients: dict[int, Client] = {}
        self._known: dict[range, ClusterMap] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def begin(self, client: Client) -> None:
        """Inform a client of RESP3 from now on, until `end` is called."""
        self._clients[client.id] = client
        if not self._known:
            self._known = self._maps()
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def end(self, client: Client) -> None:
        """Stop informing a client: it asked for it, speaks RESP2 now, or its connection has ended."""
        self._clients.pop(client.id, None)

    def _look(self) -> None:
        if not self._clients:
            self._known = {}
            return
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        known, self._known = self._known, self._maps()
        for group, now in self._known.items():
            if (before := known.get(group, now)) is not now:
                self._tell(group, before, now)

    def _maps(self) -> dict[range, ClusterMap]:
        """Return the map of each keyspace that a client uses, by its partitions."""
        store = self._server.store
        return {group: store.cluster_map(group) for group in {*map(self._group, self._clients.values())}}

    def _group(self, client: Client) -> range:
        return self._server.store.group(client.keyspace)

    def _tell(self, group: range, before: ClusterMap, now: ClusterMap) -> None:
        port = self._server.cluster_port
        moved = [
            [_address(source, port), _address(target, port), slots.encode()]
            for source, target, slots in moved_slots(before, now)
        ]
        if moved:
            message = encode_push([SMIGRATED.encode(), now.epoch, moved], True)
            for client in [each for each in self._clients.values() if self._group(each) == group]:
                if client.connection is not None:
                    client.connection.pushes.replace(message, SMIGRATED)


def _address(node: ClusterNode, port: int) -> bytes:
    return f"{node.host}:{node.port or port}".encode()
