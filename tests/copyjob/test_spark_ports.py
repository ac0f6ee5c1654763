"""What a TCP client without the secret gets from the ports of Spark's drivers and executors, and what is on
the network between them.

Spark is the real one with the properties of a copy job. Everything is asked of a second Spark too, which
has no secret: there the same client gets the data.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import packages
from tests.copyjob.spark_application import BROADCAST_DATA, FILE_DATA, QUICK_JVM, RDD_DATA, Facts
from tests.fakes.recorder import Recorder, recorded
from tests.worker import networks

pytestmark = pytest.mark.long

ANSWER_SECONDS = 30
CHUNK_REQUEST, CHUNK, CHUNK_FAILURE = 0, 1, 2
RPC_REQUEST, RPC_RESPONSE, RPC_FAILURE = 3, 4, 5
STREAM_REQUEST, STREAM, STREAM_FAILURE = 6, 7, 8
ONE_WAY = 9
LOCAL_FILE = "/etc/hostname"
DRIVER = "127.0.0.1"
_networks = networks(73)


def text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


class Client:
    """Sends frames of Spark's protocol: 8 bytes of length, a byte for the type, and what belongs to that."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((DRIVER, port), ANSWER_SECONDS)

    def send(self, kind: int, head: bytes, body: bytes = b"") -> None:
        frame = struct.pack(">qb", 9 + len(head) + len(body), kind) + head + body
        self.socket.sendall(frame)

    def answer(self) -> tuple[int, bytes]:
        """Return type and content of a frame, or -1 when the connection ends first."""
        try:
            (length,) = struct.unpack(">q", self._read(8))
            (kind,) = self._read(1)
            content = self._read(length - 9)
            if kind == STREAM:  # The data is behind the frame.
                content = self._read(*struct.unpack(">q", content[-8:]))
        except ConnectionError:
            return -1, b""
        return kind, content

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data


@contextmanager
def client(port: int) -> Iterator[Client]:
    made = Client(port)
    with made.socket:
        yield made


def call(port: int, body: bytes) -> tuple[int, bytes]:
    with client(port) as one:
        one.send(RPC_REQUEST, struct.pack(">qi", 7, len(body)), body)
        return one.answer()


def stream(port: int, name: str) -> tuple[int, bytes]:
    with client(port) as one:
        one.send(STREAM_REQUEST, text(name))
        return one.answer()


def block(port: int, application: str, name: str) -> tuple[int, bytes]:
    """Fetch a block as an executor does: open it, then take its only chunk."""
    body = b"\0" + text(application) + text("0") + struct.pack(">i", 1) + text(name)
    with client(port) as one:
        one.send(RPC_REQUEST, struct.pack(">qi", 7, len(body)), body)
        kind, answer = one.answer()
        if kind != RPC_RESPONSE:
            return kind, answer
        stream_id = answer[-12:-4]
        one.send(CHUNK_REQUEST, stream_id + struct.pack(">i", 0))
        return one.answer()


@dataclass(frozen=True)
class Application:
    """`recorder` has what executors and the driver say to each other at the driver's two ports."""

    facts: Facts
    log: Path
    driver_ports: list[int]
    recorder: Recorder

    @property
    def ports(self) -> list[int]:
        return [self.facts.driver_port, *self.facts.block_ports]

    def logs(self, line: str) -> bool:
        """Whether it writes this line soon."""
        until = time.monotonic() + ANSWER_SECONDS
        while line not in self.log.read_text():
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server((DRIVER, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


@contextmanager
def running(folder: Path, *secret: str) -> Iterator[Application]:
    packages.ensure("default-jdk-headless")
    environment = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        "PYSPARK_PYTHON": sys.executable,
    }
    log, host, ports = folder / "log", f"{next(_networks)}.1", free_ports(2)
    command = [sys.executable, "-m", "tests.copyjob.spark_application", str(folder), host]
    command += [*map(str, ports), *secret]
    with (
        recorded(host, DRIVER, ports) as recorder,
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        try:
            line = process.stdout.readline()
            assert line, log.read_text()
            yield Application(Facts(**json.loads(line)), log, ports, recorder)
        finally:
            process.stdin.close()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    with running(tmp_path_factory.mktemp("closed"), "0123456789" * 5) as made:
        yield made


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Without authentication."""
    with running(tmp_path_factory.mktemp("opened")) as made:
        yield made


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.0\r\n\r\n", bytes(64), b"\xff" * 64])
def test_garbage_ends_the_connection(closed: Application, garbage: bytes) -> None:
    for port in closed.ports:
        with client(port) as one:
            one.socket.sendall(garbage)
            assert one.answer() == (-1, b"")


def test_drivers_tell_their_settings_to_those_with_the_secret_alone(
    closed: Application, opened: Application
) -> None:
    kind, answer = call(opened.facts.driver_port, bytes.fromhex(opened.facts.ask_settings))
    assert (kind, b"stele-copy-demo-1" in answer) == (RPC_RESPONSE, True)
    kind, answer = call(closed.facts.driver_port, bytes.fromhex(closed.facts.ask_settings))
    assert (kind, b"Unknown challenge message" in answer) == (RPC_FAILURE, True)
    assert b"stele-copy-demo-1" not in answer


def test_messages_without_an_answer_are_not_taken_either(closed: Application, opened: Application) -> None:
    for application in (closed, opened):
        message = bytes.fromhex(application.facts.ask_settings)
        with client(application.facts.driver_port) as one:
            one.send(ONE_WAY, struct.pack(">i", len(message)), message)
            one.send(STREAM_REQUEST, text("/files/none"))
            assert one.answer()[0] == STREAM_FAILURE, "a one-way message has no answer"
    assert opened.logs("Received unexpected message. RetrieveSparkAppConfig(0)")
    assert closed.logs("Unauthenticated call to receive()")
    assert "RetrieveSparkAppConfig" not in closed.log.read_text()


def test_blocks_of_drivers_and_executors_take_the_secret(closed: Application, opened: Application) -> None:
    def fetched(application: Application, name: str) -> list[tuple[int, bytes]]:
        facts = application.facts
        return [block(port, facts.application, name) for port in facts.block_ports]

    for name, data in (("rdd", RDD_DATA), ("broadcast", BROADCAST_DATA)):
        found = fetched(opened, getattr(opened.facts, name))
        assert sorted((kind, data in answer) for kind, answer in found) == [
            (CHUNK, True),
            (RPC_FAILURE, False),
        ]
        refused = fetched(closed, getattr(closed.facts, name))
        assert [kind for kind, _ in refused] == [RPC_FAILURE, RPC_FAILURE]
        assert all(b"Unknown challenge message" in answer for _, answer in refused)


def test_who_sees_the_network_reads_what_driver_and_executor_say_without_a_secret_alone(
    closed: Application, opened: Application
) -> None:
    def found(application: Application) -> dict[str, set[int]]:
        assert application.recorder.busy_ports() == set(application.driver_ports)
        markers = application.facts.passed.items()
        return {name: application.recorder.ports_with(bytes.fromhex(marker)) for name, marker in markers}

    messages, blocks = opened.driver_ports
    assert found(opened) == {"task": {messages}, "broadcast": {blocks}, "result": {messages}}
    assert found(closed) == {"task": set(), "broadcast": set(), "result": set()}


def test_a_chunk_takes_the_number_of_a_stream_that_is_under_way(closed: Application) -> None:
    for port in closed.ports:
        with client(port) as one:
            one.send(CHUNK_REQUEST, struct.pack(">qi", 1, 0))
            assert one.answer()[0] in (CHUNK_FAILURE, -1)


def test_files_that_a_driver_serves_take_no_secret(closed: Application, opened: Application) -> None:
    """So it is in Spark 4.3, as docs/operating/security.md says: when this fails, that has changed."""
    for application in (closed, opened):
        assert stream(application.facts.driver_port, "/files/known.txt") == (STREAM, FILE_DATA)


def test_a_copy_s_driver_serves_no_files(closed: Application) -> None:
    assert closed.facts.served_at_first == []
    for folder in ("files", "jars", "archives", "classes", "artifacts"):
        for name in (
            f"/{folder}/known.jar",
            f"/{folder}/../../../../../..{LOCAL_FILE}",
            f"/{folder}/{LOCAL_FILE}",
        ):
            for port in closed.ports:
                assert stream(port, name)[0] in (STREAM_FAILURE, -1), (port, name)
