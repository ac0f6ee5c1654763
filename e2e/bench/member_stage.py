"""Real processes for the member's bench: redis-server, an echo, members with a tiny master."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from e2e.bench import machine
from e2e.bench.errors import BenchError
from e2e.bench.secured import SETTINGS, Secured
from e2e.cluster.errors import MachineUnfitError
from stele.core.control import commands as m
from stele.core.formats import SPOKEN
from stele.core.kv.keyspaces import Catalog
from stele.core.table.groups import NO_GROUPS, PartitionGroups
from stele.wire import control as wire

CLUSTER = "99999999-2222-3333-4444-555555555555"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
_INSTALL = "apt-get install redis-server"


def free_ports(number: int) -> list[int]:
    """Ports that are free now on every loopback address."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("0.0.0.0", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def until(ready: Callable[[], bool], what: str, seconds: float = START_SECONDS_MAX) -> float:
    """Ask again and again; the seconds that it took. BenchError when it takes too long."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        with suppress(OSError, http.client.HTTPException):
            if ready():
                return time.monotonic() - begin
        time.sleep(0.005)
    raise BenchError(f"{what}: not within {seconds:g} s")


def answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    with socket.create_connection((host, port), 1.0):
        return True


class Program:
    """One child process with a log file, ended by `close`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, words: list[str], program: str | None = None, env: dict[str, str] | None = None) -> None:
        """Start; `program` is the file when it is not the first of the words."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, executable=program, env=env, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM."""
        return machine.resident_bytes(self.pid)

    def cpu_seconds(self) -> float:
        """User and system time of the process so far."""
        return machine.cpu_seconds(self.pid)

    def stop(self) -> float:
        """End politely; the seconds that it took. BenchError when it does not end well."""
        assert self.process is not None
        begin = time.monotonic()
        self.process.terminate()
        code = self.process.wait(STOP_SECONDS_MAX)
        if code:
            raise BenchError(f"the process ended with {code}; its log is {self.log}")
        return time.monotonic() - begin

    def close(self) -> None:
        """End it at once, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Server(Protocol):
    """Where redis-benchmark connects."""

    host: str
    port: int


def redis_program() -> str:
    """The file of redis-server. Debian's redis-tools has it under another name, told apart by argv[0]."""
    found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if found is None or shutil.which("redis-benchmark") is None:
        raise MachineUnfitError(f"redis-server and redis-benchmark are needed: {_INSTALL}")
    return found


class RedisServer(Program):
    """redis-server with an append-only file that is synced every second."""

    host = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder / "redis.log")
        (self.port,) = free_ports(1)
        words = ["redis-server", "--port", str(self.port), "--bind", self.host, "--dir", str(folder)]
        words += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        self.spawn(words, redis_program())
        until(lambda: answers(self.host, self.port), "redis-server starts")


class Echo(Program):
    """A server on the same event loop as the member's that parses and stores nothing: the bound of Python."""

    host = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / "echo.log")
        (self.port,) = free_ports(1)
        self.spawn([sys.executable, "-m", "e2e.bench.member_echo", str(self.port)])
        until(lambda: answers(self.host, self.port), "the echo starts")


class Member(Program):
    """One `stele-member`; `start` after `kill` is a restart on the same volume."""

    def __init__(
        self, folder: Path, index: int, ports: list[int], fsync: str, secured: Secured | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / f"m{index}.log")
        self.index = index
        self.host = f"127.0.0.{index + 1}"
        (
            self.port,
            self.peer_port,
            self.admin_port,
            self.transfer_port,
            self.metrics_port,
            self.cluster_port,
            self.read_port,
        ) = ports
        self.folder = folder / f"m{index}"
        self.fsync = fsync
        self.uuid = ""
        self.secured = secured
        self.requires_tls = False

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        own = {
            "STELE_DATA_DIR": str(self.folder),
            "STELE_CLUSTER_UID": CLUSTER,
            "STELE_MEMBER_NAME": f"m{self.index}",
            "STELE_BIND": self.host,
            "STELE_RESP_PORT": str(self.port),
            "STELE_CLUSTER_PORT": str(self.cluster_port),
            "STELE_READ_PORT": str(self.read_port),
            "STELE_PEER_PORT": str(self.peer_port),
            "STELE_ADMIN_PORT": str(self.admin_port),
            "STELE_TRANSFER_PORT": str(self.transfer_port),
            "STELE_METRICS_PORT": str(self.metrics_port),
            "STELE_FSYNC": self.fsync,
        }
        if self.secured is not None:
            own |= self.secured.member(f"m{self.index}", self.host)
        self.spawn([sys.executable, "-m", "stele.member"], env={**os.environ, **own})

    def get(self, path: str) -> tuple[int, bytes]:
        """(status, body) of a GET at the port of probes and metrics."""
        connection = http.client.HTTPConnection(self.host, self.metrics_port, timeout=30)
        return self._ask(connection, "GET", path, None)

    def post(self, path: str, body: bytes) -> bytes:
        place = self.host, self.admin_port
        connection = http.client.HTTPConnection(*place, timeout=30)
        if self.secured is not None and self.requires_tls:
            connection = http.client.HTTPSConnection(*place, timeout=30, context=self.secured.dialling())
        return self._ask(connection, "POST", path, body)[1]

    @staticmethod
    def _ask(
        connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _is_ready(member: Member) -> bool:
    return member.get("/readyz")[0] == 200


class Stage:
    """Members, and of the master as much as makes them serve: one table, told once."""

    def __init__(self, folder: Path, partitions: int, replicas: int) -> None:
        self.folder, self.partitions, self.replicas = folder, partitions, replicas
        self.members: list[Member] = []
        self.form_seconds = 0.0
        self.secured: Secured | None = None

    def form(self, members: int, fsync: str) -> None:
        """Start members, assign the partitions in turn, wait until all are served."""
        ports = free_ports(7)
        for index in range(members):
            self.members.append(Member(self.folder, index, ports, fsync, self.secured))
            self.members[-1].start()
        begin = time.monotonic()
        for member in self.members:
            until(partial(self._hello, member), f"member {member.index} starts")
        self.publish()
        self.until_served()
        self.form_seconds = time.monotonic() - begin

    def _hello(self, member: Member) -> bool:
        request = m.ExchangeRequest(format=SPOKEN.most, cluster=CLUSTER, epoch=1, recipient="")
        reply = wire.decode_reply(member.post("/v1/exchange", wire.encode(request)))
        member.uuid = reply.uuid
        return reply.code == "OK"

    def publish(self, catalog: Catalog | None = None, replicated: PartitionGroups = NO_GROUPS) -> None:
        """Tell every member the whole table, and the catalog of keyspaces if there is one.

        Partitions of `replicated` groups have a copy at every member.
        """
        number, partitions = len(self.members), replicated.end(self.partitions)
        copies = [self.replicas] * self.partitions + [number] * (partitions - self.partitions)
        rows = tuple(
            m.Row(p, 1, tuple((p + i) % number for i in range(copies[p]))) for p in range(partitions)
        )
        infos = tuple(
            m.MemberInfo(each.index, f"m{each.index}", each.uuid, each.host) for each in self.members
        )
        for member in self.members:
            request = m.ExchangeRequest(
                format=SPOKEN.most, cluster=CLUSTER, epoch=1, recipient=member.uuid, self_index=member.index,
                partitions=partitions, replicas=self.replicas, state="Active", member_list_version=1,
                members=infos, rows=rows, full=True, catalog=catalog,
                groups=replicated, groups_version=replicated.version,
                settings=SETTINGS if self.secured else None,
            )  # fmt: skip
            reply = wire.decode_reply(member.post("/v1/exchange", wire.encode(request)))
            if reply.code != "OK":
                raise BenchError(f"member {member.index} refused the table: {reply.code}: {reply.detail}")
            member.requires_tls = self.secured is not None

    def until_served(self) -> None:
        for member in self.members:
            until(partial(_is_ready, member), f"member {member.index} serves")

    def restart(self) -> float:
        """Start the one member again, on its volume; seconds until it serves all its tablets."""
        begin = time.monotonic()
        self.members[0].start()
        self.until_served()
        return time.monotonic() - begin

    def close(self) -> None:
        for member in self.members:
            member.close()


@contextmanager
def stage(
    folder: Path,
    members: int = 1,
    partitions: int = 271,
    replicas: int = 1,
    fsync: str = "Interval",
    *,
    secured: bool = False,
) -> Iterator[Stage]:
    """Members that serve; their processes end with the block. `secured`: with TLS everywhere, and users."""
    made = Stage(folder, partitions, replicas)
    try:
        if secured:
            made.secured = Secured.of(folder / "secured", CLUSTER)
        made.form(members, fsync)
        yield made
    finally:
        made.close()
