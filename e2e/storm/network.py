"""Cuts between pods, by rules in a chain of its own on every node; taking the chain away undoes them all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from e2e.cluster import engine
from e2e.demo.errors import DemoError
from e2e.demo.kube import command

CHAIN = "STELE-STORM"
API_PORT, RESP_PORT, ADMIN_PORT = "6443", "6379", "7001"

Way = tuple[str, ...]
"""What iptables matches: `-s ADDRESS -d ADDRESS`, or `-s ADDRESS -p tcp [!] --dport PORT`."""


def between(one: str, other: str) -> list[Way]:
    """Both ways between two addresses."""
    return [("-s", one, "-d", other), ("-s", other, "-d", one)]


def to_api_server(address: str) -> list[Way]:
    """The way from a pod to the API server, which answers on the nodes' network."""
    return [("-s", address, "-p", "tcp", "--dport", API_PORT)]


def to_admin(address: str) -> list[Way]:
    """Both ways between the operator, whichever pod it is, and a member."""
    return _port_of(address, ADMIN_PORT)


def but_clients(address: str) -> list[Way]:
    """Both ways between a member and all others, except what clients ask it."""
    return _port_of(address, "!", RESP_PORT)


def _port_of(address: str, *port: str) -> list[Way]:
    *negated, number = port
    return [
        ("-d", address, "-p", "tcp", *negated, "--dport", number),
        ("-s", address, "-p", "tcp", *negated, "--sport", number),
    ]


class Network:
    """The nodes' network. All pods are routed, so each packet between two of them is forwarded by a node.

    A node is known by a process of it.
    """

    def __init__(self, env: Mapping[str, str], nodes: Iterable[int]) -> None:
        self._env, self._nodes = env, tuple(nodes)

    async def begin(self) -> None:
        """Take away what another storm may have left, and put the chain in front of what forwards."""
        await self.end()
        for words in (("-N", CHAIN), ("-I", "FORWARD", "-j", CHAIN)):
            await self._everywhere([words])

    async def cut(self, ways: Sequence[Way]) -> None:
        """Drop what goes these ways, connections that stand included: on all nodes, or on none."""
        try:
            await self._everywhere([("-A", CHAIN, *way, "-j", "DROP") for way in ways])
        except DemoError:
            # One at a time: the node that refused may have taken the first of them.
            for way in ways:
                with suppress(DemoError):
                    await self.mend([way])
            raise

    async def mend(self, ways: Iterable[Way]) -> None:
        """Let through again what `cut` dropped."""
        await self._everywhere([("-D", CHAIN, *way, "-j", "DROP") for way in ways])

    async def end(self) -> None:
        """Take the chain away with all cuts; nothing to take away is no error."""
        for words in (("-D", "FORWARD", "-j", CHAIN), ("-F", CHAIN), ("-X", CHAIN)):
            with suppress(DemoError):
                await self._everywhere([words])

    async def _everywhere(self, rules: Sequence[Way]) -> None:
        """Run iptables in the network of each node, without a process in its container."""
        if not rules:
            return
        line = "; ".join(" ".join(("iptables", "-w", "5", *rule)) for rule in rules)
        done = await asyncio.gather(
            *(
                command(self._env, "nsenter", "--net", "--target", str(node), "sh", "-ec", line)
                for node in self._nodes
            ),
            return_exceptions=True,
        )
        for each in done:
            if isinstance(each, BaseException):
                raise each


async def process_of_node(env: Mapping[str, str], node: str) -> int:
    """The number on this machine of the first process of a node, which is a container."""
    used = engine.remembered()
    if used is None:
        raise DemoError("It is not known which engine runs the nodes: python -m e2e.cluster down, then up.")
    return int(await command(env, used.program, "inspect", "--format", "{{.State.Pid}}", node))
