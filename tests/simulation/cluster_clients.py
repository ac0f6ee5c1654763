"""Clients of the Redis Cluster protocol: they route by the map, follow MOVED, and read at backups."""

import asyncio
from collections.abc import Sequence
from typing import Any

from stele.core.kv.commands import Failure
from stele.core.kv.keyslot import slot_of
from tests.fakes.network import Network
from tests.fakes.resp_connection import RespConnection
from tests.simulation.clients import PATIENCE_SECONDS, Connection, Keys, command_of
from tests.simulation.history import Operation, Violation
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.member import CLUSTER_PORT, READ_PORT
from tests.simulation.profile import Backups
from tests.simulation.redis_clients import RedisClient, certain
from tests.simulation.trace import Trace

REDIRECTED = "redirections end at the owner"
NOT_FORWARDED = "members forward nothing for clients that know the map"

REDIRECTIONS_MAX = 16
"""Redirections of one request, until the client gives up."""
REDIRECTIONS_AT_REST = 1
BACKUP_PART = 0.6
STRAY_PART = 0.1
"""Which part of the requests goes to any member, as if the map were old."""

Target = tuple[str, int, bool]
"""An address, its port, and whether the connection is READONLY."""


class ClusterClient(RedisClient):
    """`_ranges` is its map, as CLUSTER SLOTS returned it; `_moved` has the owners that it heard of since."""

    def __init__(self, name: str, network: Network, kubelet: Kubelet, keys: Keys, trace: Trace) -> None:
        self._nodes: dict[Target, tuple[RespConnection, Connection]] = {}
        self._ranges: list[Any] = []
        self._moved: dict[int, str] = {}
        super().__init__(name, network, kubelet, keys, trace)
        self._jobs = ((8, self._operate), (1, self._transfer), (1, self._audit_one), (1, self._learn))

    # -- connections

    async def _call_at(self, target: Target, *requests: Sequence[bytes]) -> list[Any] | None:
        """Return the replies; None when the connection was lost, or they took too long."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if target not in self._nodes or not self._nodes[target][0].open:
                    await self._connect_to(target)
                return await self._nodes[target][0].ask(*requests)
        except (ConnectionError, TimeoutError):
            known = self._nodes.pop(target, None)
            if known is not None:
                known[0].close()
            self._ranges = []
            return None

    async def _connect_to(self, target: Target) -> None:
        address, port, readonly = target
        made = await self._loop.create_connection(RespConnection, address, port)
        if readonly and port == CLUSTER_PORT:
            await made[1].ask([b"READONLY"])
        self._nodes[target] = made[1], Connection(None)

    # -- the map

    async def _learn(self, machine: Machine) -> None:
        replies = await self._call_at((machine.address, CLUSTER_PORT, False), [b"CLUSTER", b"SLOTS"])
        if replies is not None and isinstance(replies[0], list):
            self._ranges, self._moved = replies[0], {}

    def _nodes_of(self, slot: int) -> list[Any]:
        """The owner of a slot, and its backups."""
        return next((each[2:] for each in self._ranges if each[0] <= slot <= each[1]), [])

    def _owner(self, machine: Machine, slot: int) -> Target:
        if slot in self._moved:
            return self._moved[slot], CLUSTER_PORT, False
        nodes = self._nodes_of(slot)
        return (nodes[0][0].decode() if nodes else machine.address), CLUSTER_PORT, False

    def _backup(self, machine: Machine, slot: int) -> Target:
        """A backup by the map, or any member: on the port for that, or after READONLY."""
        random, nodes = self._clock.random, self._nodes_of(slot)[1:]
        address = random.choice(nodes)[0].decode() if nodes and random.random() < 0.7 else machine.address
        return address, random.choice((CLUSTER_PORT, READ_PORT)), True

    # -- requests

    async def _ask(self, machine: Machine, operation: Operation) -> object:
        if not self._ranges:
            await self._learn(machine)
        random, slot = self._clock.random, slot_of(operation.key)
        target = self._owner(machine, slot)
        if operation.kind == "get" and random.random() < BACKUP_PART:
            target = self._backup(machine, slot)
        elif random.random() < STRAY_PART:
            target = machine.address, CLUSTER_PORT, False
        found, _ = await self._follow(target, operation)
        return found

    async def _follow(self, target: Target, operation: Operation) -> tuple[object, int]:
        """Ask, and go on where MOVED says; return the answer, and how often it was redirected."""
        slot = slot_of(operation.key)
        for redirections in range(REDIRECTIONS_MAX + 1):
            replies = await self._call_at(target, command_of(operation))
            if replies is None:
                return None, redirections
            reply = certain(replies[-1])
            if not isinstance(reply, Failure) or reply.code != "MOVED":
                stale = Backups.READONLY if target[2] else Backups.NEVER
                operation.stale_seconds = self._keys.stale_seconds(stale)
                return (reply, self._nodes[target][1]), redirections
            self._trace.cover("redirected by MOVED")
            self._moved[slot] = reply.text.split()[1].partition(":")[0]
            target = self._moved[slot], CLUSTER_PORT, False
        return (reply, Connection(None)), REDIRECTIONS_MAX

    # -- at rest

    def check_at_rest(self, machines: list[Machine]) -> "asyncio.Task[None]":
        """Read each key, beginning at each member: it names the owner, and forwards nothing."""
        return self._loop.create_task(self._check_at_rest(machines))

    async def _check_at_rest(self, machines: list[Machine]) -> None:
        before = _forwarded(machines)
        for operation in self._keys.reads(self.name):
            for machine in machines:
                found, redirections = await self._follow((machine.address, CLUSTER_PORT, False), operation)
                if found is None or redirections > REDIRECTIONS_AT_REST:
                    text = f"{machine.place} redirects reads of {operation.key!r} {redirections} times"
                    self._clock.fail(Violation(REDIRECTED, f"{text}: {found}", key=operation.key))
                self._trace.checked[REDIRECTED] += 1
        if (count := _forwarded(machines) - before) > 0:
            text = f"{count} requests of a client that follows the map were forwarded"
            self._clock.fail(Violation(NOT_FORWARDED, text))
        self._trace.checked[NOT_FORWARDED] += 1


def _forwarded(machines: list[Machine]) -> int:
    nodes = [machine.node for machine in machines]
    return sum(int(node.router.info()["forwarded"]) for node in nodes if node is not None)
