"""Real members under the real master, as somebody who tries Stele sees them."""

import json
import signal
import socket
import stat
import subprocess
import threading
import time
import urllib.request

import pytest
import redis

from tests.playground.harness import COMMAND, Ground, until

KEYS = 200
AWAY_SECONDS = 2.0
"""Longer than it takes until a member without `--away` is started again."""


def client(ground: Ground, member: int = 0) -> "redis.Redis":
    return redis.Redis(f"127.0.0.{member + 1}", ground.ports()["resp"], socket_timeout=20)


def write(ground: Ground, prefix: str) -> dict[bytes, bytes]:
    """Write, through one member, and return what was acknowledged."""
    entries = {f"{prefix}-{each}".encode(): f"{prefix}={each}".encode() for each in range(KEYS)}
    with client(ground) as connection:
        for key, value in entries.items():
            assert connection.set(key, value)
    return entries


def check(ground: Ground, entries: dict[bytes, bytes]) -> None:
    """All that was acknowledged is read, at each member."""
    cluster = ground.cluster()
    assert cluster is not None
    for member in range(cluster.spec.members):
        with client(ground, member) as connection:
            assert dict(zip(entries, connection.mget(list(entries)), strict=True)) == entries


def test_nothing_is_lost_while_members_come_and_go_die_and_start_again(ground: Ground) -> None:
    ground.up("--members", "3", "--partitions", "16")
    assert "no Kubernetes" in ground.said()
    assert f"redis-cli -p {ground.ports()['resp']}" in ground.said()
    page = f"http://127.0.0.1:{ground.ports()['page']}/"
    assert page in ground.said()
    with urllib.request.urlopen(f"{page}v1/clusters/playground/demo") as answer:
        assert len(json.load(answer)["rows"]) == 16
    entries = write(ground, "first")

    assert ground.run("scale", "4").stdout == "demo is to have 4 members\n"
    ground.until_running()
    entries |= write(ground, "of four")
    check(ground, entries)

    before = ground.members()
    assert ground.run("kill", "demo-1", "--away", "5").returncode == 0
    time.sleep(AWAY_SECONDS)
    assert len(ground.members()) == len(before) - 2
    until(lambda: set(ground.members()) - set(before) != set(), "the member is started again")
    ground.until_running()
    assert "demo-1: the member process was killed by signal 9" in ground.said()
    entries |= write(ground, "after the kill")

    assert ground.run("scale", "3").returncode == 0
    ground.until_running()
    check(ground, entries)

    assert ground.signal(signal.SIGINT) == 0
    assert ground.members() == []
    ground.up()
    check(ground, entries)

    status = ground.run("status")
    assert "Running: 3 of 3 members ready" in status.stdout
    assert "demo-2" in status.stdout
    assert "held by demo-" in ground.run("why", "7").stdout
    assert ground.run("drain", "demo-0").stdout == "demo-0 is being drained\n"
    table = (ground.folder / "table" / "demo-table-0.yaml").read_text()
    assert "kind: ConfigMap" in table

    assert ground.run("down", "--yes").returncode == 0
    assert not ground.folder.exists()
    assert ground.members() == []


def test_what_was_acknowledged_before_ctrl_c_is_there_afterwards(ground: Ground) -> None:
    ground.up("--members", "3", "--partitions", "8", "--replicas", "3")
    acknowledged: dict[bytes, bytes] = {}
    begun = threading.Event()

    def write_on() -> None:
        with client(ground) as connection:
            try:
                for each in range(1_000_000):
                    connection.set(f"key-{each}", f"value-{each}")
                    acknowledged[f"key-{each}".encode()] = f"value-{each}".encode()
                    if each == KEYS:
                        begun.set()
            except redis.RedisError:
                pass

    writer = threading.Thread(target=write_on)
    writer.start()
    assert begun.wait(60)
    assert ground.signal(signal.SIGINT) == 0
    writer.join(60)
    assert not writer.is_alive()
    assert ground.members() == []
    ground.up()
    assert len(acknowledged) > KEYS
    check(ground, acknowledged)
    assert ground.signal(signal.SIGTERM) == 0


def test_a_playground_that_is_killed_leaves_no_members_and_its_data(ground: Ground) -> None:
    ground.up("--members", "1", "--replicas", "1", "--partitions", "4")
    entries = write(ground, "one")
    assert len(ground.members()) == 2
    ground.signal(signal.SIGKILL)
    until(lambda: ground.members() == [], "its members end with it")
    assert (ground.folder / "socket").exists()
    refused = ground.run("status")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "no playground runs in" in refused.stderr
    ground.up()
    check(ground, entries)


def test_it_is_for_this_user_on_loopback_alone(ground: Ground) -> None:
    ground.up("--members", "1", "--replicas", "1", "--partitions", "4")
    assert stat.S_IMODE((ground.folder / "socket").stat().st_mode) == 0o600
    assert stat.S_IMODE(ground.folder.stat().st_mode) == 0o700
    own = _other_address()
    ports = {name: port for name, port in ground.ports().items() if name != "copier"}
    for port in ports.values():
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((own, port), 2)
        socket.create_connection(("127.0.0.1", port), 2).close()

    second = ground.run("up")
    assert second.returncode == 1
    assert "a playground runs in" in second.stderr
    load = ground.run("load", "--seconds", "3", "--clients", "2")
    assert load.returncode == 0, load.stderr
    assert "Running: members 1/1, safe 4/4" in load.stdout
    assert load.stdout.splitlines()[0].split()[:2] == ["writes/s", "reads/s"]

    words = [*COMMAND, "load", "--dir", str(ground.folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as endless:
        assert endless.stdout is not None
        assert [endless.stdout.readline() for _ in range(3)]
        endless.send_signal(signal.SIGINT)
        assert (endless.wait(30), endless.stderr and endless.stderr.read()) == (0, "")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as cut_off:
        assert cut_off.stdout is not None
        assert [cut_off.stdout.readline() for _ in range(3)]
        assert ground.signal(signal.SIGTERM) == 0
        assert cut_off.wait(30) == 3
        assert "no playground runs in" in (cut_off.stderr.read() if cut_off.stderr else "")


def _other_address() -> str:
    """An address of this machine that nobody listens on; of loopback when there is no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.9.9"
        return str(probe.getsockname()[0])
