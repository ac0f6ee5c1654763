"""Cluster clients in Go and Java, while members join and leave, and when one dies.

Their programs (tests/clients) work on keys until their input ends, and print what they saw.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from e2e.cluster import cache
from tests import packages
from tests.member.harness.cluster import Cluster, cluster, eventually
from tests.member.harness.scaling import change_owners
from tests.member.resp.test_cluster_clients import (
    CLUSTER_PORT,
    die,
    forwards_nothing,
    join_and_leave,
    keys_of,
    of_info,
)
from tests.sampled import sampled

SOURCES = Path(__file__).resolve().parents[2] / "clients"
BUILD_SECONDS_MAX = 600
START_SECONDS_MAX = 30.0
LEASE_MS = 500
"""That of the members here: how old what a backup answers may be."""

LETTUCE = {"lettuce": "7.7.0.RELEASE", "lettuce-6": "6.8.1.RELEASE"}
CLIENTS = ["go-redis", "jedis", "lettuce", "lettuce-6"]
clients = pytest.mark.parametrize("client", [sampled(each, kept=each != "lettuce-6") for each in CLIENTS])


def built(language: str, *commands: Sequence[str]) -> Path:
    """Return the folder with the built program: built once for the same sources and commands."""
    source = SOURCES / language
    inputs = cache.hash_inputs([source], values=[" ".join(command) for command in commands])

    def make(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for command in commands:
            subprocess.run(command, cwd=folder, check=True, timeout=BUILD_SECONDS_MAX)

    return cache.entry("clients", f"{language}-{inputs}", make)


def go_redis() -> list[str]:
    packages.ensure_go()
    return [str(built("go", ["go", "build", "-o", "program", "."]) / "program")]


def java(client: str) -> list[str]:
    packages.ensure("default-jdk-headless", "maven")
    maven = ["mvn", "-q", "-B", "package", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
    folder = built("java", [*maven, f"-Dlettuce.version={LETTUCE.get(client, LETTUCE['lettuce'])}"])
    return ["java", "-cp", f"{folder}/target/clients-1.jar:{folder}/lib/*", "stele.CountUp"]


def command_of(client: str, what: str, host: str, port: int) -> list[str]:
    """Return the program with its arguments, but for the keys."""
    if client == "go-redis":
        return [*go_redis(), what, f"{host}:{port}", str(LEASE_MS)]
    return [*java(client), client, what, host, str(port), str(LEASE_MS)]


def direct_client(made: Cluster) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(host=made.members[2].host, port=made.ports[0])


async def until_counted(made: Cluster, key: bytes) -> None:
    """Wait until the program works: a JVM takes its time to start."""
    async with direct_client(made) as client:
        await eventually(lambda: client.get(key), bool, START_SECONDS_MAX)


@dataclass
class Program:
    """A program that is running; `seen` is what it printed, once it has ended."""

    keys: list[bytes]
    seen: dict[str, Any]
    process: asyncio.subprocess.Process

    async def end(self) -> None:
        out, _ = await asyncio.wait_for(self.process.communicate(b""), 60)
        self.seen = json.loads(out)


@asynccontextmanager
async def running(made: Cluster, client: str, what: str) -> AsyncIterator[Program]:
    """Run a program on all keys: `what` it does is said in its source."""
    keys, member = keys_of(made), made.members[0]
    command = await asyncio.to_thread(command_of, client, what, member.host, made.ports[CLUSTER_PORT])
    process = await asyncio.create_subprocess_exec(
        *command,
        *(key.decode() for key in keys),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await until_counted(made, keys[-1])
        yield Program(keys, {}, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def check(made: Cluster, program: Program) -> None:
    """Nothing failed, and each key has what was acknowledged last, or that and attempts of unknown end."""
    assert program.seen["failures"] == []
    assert set(program.seen["counts"]) == {key.decode() for key in program.keys}
    async with direct_client(made) as direct:
        for key, count in program.seen["counts"].items():
            unknown = program.seen["unknown"].get(key, 0)
            assert 0 < count <= int(await direct.get(key)) <= count + unknown


@clients
async def test_no_request_fails_or_is_forwarded_for_long_while_members_join_and_leave(
    tmp_path: Path, client: str
) -> None:
    async with cluster(tmp_path, 3) as made:
        async with running(made, client, "count") as program:
            await join_and_leave(made)
            await asyncio.sleep(1.0)
            await forwards_nothing(made)
            await program.end()
        await check(made, program)


@clients
async def test_reads_from_backups_are_recent_while_owners_change(tmp_path: Path, client: str) -> None:
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        async with running(made, client, "read") as program:
            await change_owners(made)
            await asyncio.sleep(1.0)
            await program.end()
        await check(made, program)
        # Lettuce knows of replicas by CLUSTER NODES, which names none: it reads from owners.
        assert (await of_info(made, "backup_reads") > 0) == (client not in LETTUCE)


@clients
async def test_what_may_be_repeated_goes_on_when_an_owner_dies(tmp_path: Path, client: str) -> None:
    """And an increment that was acknowledged is there, and what is there was asked for."""
    async with cluster(tmp_path, 3) as made:
        async with running(made, client, "die") as program:
            await die(made)
            await asyncio.sleep(2.0)
            await forwards_nothing(made)
            await program.end()
        await check(made, program)


@pytest.mark.parametrize("changes", [change_owners, join_and_leave])
async def test_rueidis_keeps_nothing_old_while_owners_change(
    tmp_path: Path, changes: Callable[[Cluster], Awaitable[None]]
) -> None:
    """It asks for each key that it keeps: CLIENT CACHING, then PTTL and GET in one transaction."""
    async with cluster(tmp_path, 3) as made:
        if changes is change_owners:
            for member in made.members.values():
                await member.start_transfer()
        async with running(made, "go-redis", "cache") as program:
            await asyncio.sleep(1.0)
            await changes(made)
            await asyncio.sleep(1.0)
            await program.end()
        await check(made, program)
        assert program.seen["hits"] > 100
