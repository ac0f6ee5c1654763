"""A grid of Hazelcast or Infinispan: its members as JVMs on loopback, and a process with its clients."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from e2e.bench import peers
from e2e.bench.talk import Talker
from e2e.cluster import cache

HEAP = "1536m"
# What Hazelcast's manual asks for on a JVM with modules.
OPENS = [
    "--add-modules=java.se",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "-Djava.net.preferIPv4Stack=true",
]
CLIENTS = -1


class Grid:
    """Members and the clients' process, with these options of Java; all are killed when the `with` block is
    left.
    """

    def __init__(self, system: str, partitions: int, *options: str, members: int = 3) -> None:
        self._system, self._partitions, self._options, self._number = system, partitions, options, members
        self._stack = ExitStack()
        self.members: list[Talker] = []
        self.clients: Talker

    def __enter__(self) -> Self:
        with self._stack:
            self.members = [self.start(number) for number in range(self._number)]
            self.clients = self.start(CLIENTS)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, number: int) -> Talker:
        """Start the member of this number, or the clients."""
        return self._stack.enter_context(node(self._system, number, self._partitions, *self._options))


def node(system: str, number: int, partitions: int, *options: str) -> Talker:
    """A process of `stele.bench.Node` that has said that it is ready, once it is entered."""
    name = f"{system}-{'clients' if number == CLIENTS else number}"
    words = [*OPENS, *options, "stele.bench.Node", system, str(number), str(partitions)]
    return _Node(name, peers.java(peers.ensure(), HEAP, *words), log_of(name))


class _Node(Talker):
    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.answer("its start")
        except BaseException:
            self.__exit__()
            raise
        return self


def log_of(name: str) -> Path:
    """An empty log for what a process says besides its answers."""
    path = cache.root() / "logs" / f"bench-{name}.log"
    path.unlink(missing_ok=True)
    return path
