"""A redis-server of this machine, whose replies those of members are compared with."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from e2e.bench.member_stage import free_ports, redis_program
from stele.core.kv.keyslot import SLOTS

READY_SECONDS_MAX = 20.0


@contextmanager
def redis_server(*options: str) -> Iterator[int]:
    """Run one that stores nothing on disk; its port, once it answers."""
    (port,) = free_ports(1)
    # Debian's redis-tools has the program under another name: it is redis-server when it is called so.
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", *options]
    process = subprocess.Popen(command, executable=redis_program(), stdout=subprocess.DEVNULL)
    try:
        _until(port, "PING", True)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def redis_cluster(folder: Path, slots: int = SLOTS) -> Iterator[int]:
    """Run one in cluster mode that owns the first slots; its port, once it serves them.

    Another node that does not exist owns the others, so requests for them are redirected.
    """
    others = f"{'0' * 40} 127.0.0.1:1@10001 master - 0 0 2 connected {slots}-{SLOTS - 1}\n"
    myself = f"{'1' * 40} 127.0.0.1:0@0 myself,master - 0 0 1 connected 0-{slots - 1}\n"
    text = f"{myself}{others if slots < SLOTS else ''}vars currentEpoch 2 lastVoteEpoch 0\n"
    (folder / "nodes.conf").write_text(text)
    (bus_port,) = free_ports(1)
    options = ["--cluster-enabled", "yes", "--cluster-port", str(bus_port), "--dir", str(folder)]
    with redis_server(*options, "--cluster-node-timeout", "3600000") as port:
        _until(port, "SET b 1", True)
        yield port


def _until(port: int, command: str, reply: object) -> None:
    """Wait until a command is answered so."""
    until, found = time.monotonic() + READY_SECONDS_MAX, None
    with redis.Redis(port=port) as client:
        while found != reply:
            assert time.monotonic() < until, f"redis-server answers {found} to {command}"
            try:
                found = client.execute_command(*command.split())
            except redis.RedisError as error:
                found = error
                time.sleep(0.02)
