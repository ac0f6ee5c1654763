"""Recording relays in front of members: all that enters or leaves a pod, as it is on the network.

They need no rights, other than a capture of the interface would. What processes of one pod say to each other
does not go through them, and neither does what the API server and its database say.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stele.adapters.kubernetes.api import Api
from tests.operator.test_client_security import MountingKubelet
from tests.worker import networks

CLIENTS, MEMBERS, MASTER, COPIES = 6379, 7000, 7001, 7002
PORTS = (CLIENTS, 6380, 6381, MEMBERS, MASTER, COPIES, 7004)
READ_BYTES = 1 << 16

_inner_networks = networks(76)


class Recorder:
    """Relays of connections. `sent` has, by port, the bytes of each direction of each connection."""

    def __init__(self) -> None:
        self.sent: dict[int, list[bytearray]] = {port: [] for port in PORTS}
        self._servers: list[asyncio.Server] = []
        self._running: set[asyncio.Task[None]] = set()

    async def relay(self, outer: str, inner: str, port: int) -> None:
        """Listen at `outer` for who listens at `inner`."""

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                await self._pass_on(reader, writer, inner, port)
            finally:
                writer.close()
                self._running.discard(task)

        self._servers.append(await asyncio.start_server(take, outer, port))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: str, port: int
    ) -> None:
        with contextlib.suppress(OSError):
            back, there = await asyncio.open_connection(inner, port)
            records = bytearray(), bytearray()
            self.sent[port] += records
            try:
                await asyncio.gather(_copy(reader, there, records[0]), _copy(back, writer, records[1]))
            finally:
                there.close()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def ports_with(self, text: bytes) -> set[int]:
        """Return at which ports these bytes have passed."""
        return {port for port, records in self.sent.items() if any(text in record for record in records)}

    def busy_ports(self) -> set[int]:
        """Return at which ports anything has passed, in both directions of a connection."""
        return {port for port, records in self.sent.items() if sum(map(bool, records)) > 1}


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bytearray) -> None:
    """Pass on one direction until its end. Raises OSError when one side resets the connection."""
    while data := await source.read(READ_BYTES):
        record += data
        sink.write(data)
        await sink.drain()
    sink.write_eof()


class RecordedKubelet(MountingKubelet):
    """Members whose pods have a relay at each port; they listen at another address than the pod's."""

    def __init__(self, api: Api, namespace: str, directory: Path, ports: Iterable[int] = PORTS) -> None:
        super().__init__(api, namespace, directory)
        self.recorder, self._ports = Recorder(), tuple(ports)
        self._inner_network = next(_inner_networks)

    async def __aexit__(self, *what: object) -> None:
        await super().__aexit__(*what)
        await self.recorder.close()

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        if container["name"] == "member":
            for port in self._ports:
                await self.recorder.relay(self.addresses[name], self._inner(name), port)
        await super()._start(name, container)

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        return super()._environment(name, container) | {"STELE_BIND": self._inner(name)}

    def _inner(self, name: str) -> str:
        return self.addresses[name].replace(self._network, self._inner_network)
