"""What the shell completes after `kubectl stele playground`."""

import asyncio
import subprocess
import sys
from typing import Any, cast

import pytest

from stele.adapters.kubernetes.api import MEMBERS
from stele.playground.cluster import Wanted, ensure_cluster
from stele.playground.folder import held, socket_of
from stele.playground.objects import ObjectFiles
from stele.playground.server import Server
from tests.playground.harness import Ground

PROGRAM = "from stele.cli.completion import main; raise SystemExit(main())"
UNUSED = cast("Any", None)


def offered(*words: str) -> list[str]:
    """The candidates, without what is said about them."""
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    *lines, _ = done.stdout.splitlines()
    return [line.partition("\t")[0] for line in lines]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["playground", "s"], ["scale", "state", "status"]),
        (["-n", "playground", "playground", "wh"], ["why"]),
        (["playground", "up", "--p"], ["--partitions"]),
        (["playground", "state", "P"], ["Passive"]),
        (["playground", "kill", "--dir=/nowhere", ""], []),
    ],
)
def test_its_commands_and_options_are_offered(words: list[str], expected: list[str]) -> None:
    assert offered(*words) == expected


async def test_names_are_those_of_its_members(ground: Ground) -> None:
    with held(ground.folder):
        files = ObjectFiles(ground.folder)
        ensure_cluster(files, Wanted())
        for index in range(2):
            spec = {"cluster": "demo", "index": index}
            files.create(MEMBERS, {"metadata": {"name": f"demo-{index}"}, "spec": spec})
        async with Server(files, UNUSED, UNUSED, UNUSED).listening(socket_of(ground.folder)):
            for given in (["--dir", str(ground.folder)], [f"--dir={ground.folder}"]):
                for command in ("kill", "drain", "why"):
                    found = await asyncio.to_thread(offered, "playground", command, *given, "demo-")
                    assert found == ["demo-0", "demo-1"]
