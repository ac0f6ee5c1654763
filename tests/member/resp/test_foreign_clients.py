"""Cluster clients in Go and Java, with their defaults, while the owners of partitions change.

Their programs (tests/clients) count up keys until their input ends, and print what they saw.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis.asyncio

from e2e.cluster import cache
from tests.member.harness.cluster import Cluster, cluster, eventually
from tests.member.resp.test_cluster_clients import CLUSTER_PORT, change_owners, forwarded, keys_of

SOURCES = Path(__file__).resolve().parents[2] / "clients"
BUILD_SECONDS_MAX = 600
START_SECONDS_MAX = 30.0


def built(language: str, *commands: Sequence[str]) -> Path:
    """Return the folder with the built program: built once for each content of its sources."""
    source = SOURCES / language

    def make(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for command in commands:
            subprocess.run(command, cwd=folder, check=True, timeout=BUILD_SECONDS_MAX)

    return cache.entry("clients", f"{language}-{cache.hash_inputs([source])}", make)


def go_redis() -> list[str]:
    return [str(built("go", ["go", "build", "-o", "program", "."]) / "program")]


def java(client: str) -> list[str]:
    maven = ["mvn", "-q", "-B", "package", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
    folder = built("java", maven)
    return ["java", "-cp", f"{folder}/target/clients-1.jar:{folder}/lib/*", "stele.CountUp", client]


def command_of(client: str, host: str, port: int) -> list[str]:
    if client == "go-redis":
        return [*go_redis(), f"{host}:{port}"]
    return [*java(client), host, str(port)]


def direct_client(made: Cluster) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(host=made.members[0].host, port=made.ports[0])


async def until_counted(made: Cluster, key: bytes) -> None:
    """Wait until the program counts: a JVM takes its time to start."""
    async with direct_client(made) as client:
        await eventually(lambda: client.get(key), bool, START_SECONDS_MAX)


@pytest.mark.parametrize(("client", "tool"), [("go-redis", "go"), ("jedis", "mvn"), ("lettuce", "mvn")])
async def test_no_request_fails_or_is_forwarded_for_long_while_owners_change(
    tmp_path: Path, client: str, tool: str
) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed, which builds the program with {client}")
    async with cluster(tmp_path, 3) as made:
        for member in made.members.values():
            await member.start_transfer()
        keys = keys_of(made)
        command = await asyncio.to_thread(command_of, client, made.members[0].host, made.ports[CLUSTER_PORT])
        program = await asyncio.create_subprocess_exec(
            *command,
            *(key.decode() for key in keys),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await until_counted(made, keys[-1])
            await change_owners(made)
            await asyncio.sleep(1.0)
            before = await forwarded(made)
            await asyncio.sleep(1.0)
            assert await forwarded(made) == before
            out, _ = await asyncio.wait_for(program.communicate(b""), 60)
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        seen = json.loads(out)
        assert seen["failures"] == []
        assert set(seen["counts"]) == {key.decode() for key in keys}
        async with direct_client(made) as direct:
            for key, count in seen["counts"].items():
                assert int(await direct.get(key)) == count > 0
