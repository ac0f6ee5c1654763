"""The transfer process as a program."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import aiohttp
import pytest

from e2e.bench.member_stage import free_ports
from stele.adapters.environment import read
from stele.errors import BadInput
from stele.transfer.__main__ import Settings


async def test_the_program_starts_and_ends_on_sigterm(volume):
    (port,) = free_ports(1)
    environment = os.environ | {
        "STELE_DATA_DIR": str(volume),
        "STELE_BIND": "127.0.0.1",
        "STELE_TRANSFER_PORT": str(port),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stele.transfer.__main__", env=environment
    )
    async with aiohttp.ClientSession() as http:
        for _ in range(200):
            try:
                async with http.get(f"http://127.0.0.1:{port}/healthz") as answer:
                    assert answer.status == 200
                    break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({}, "STELE_DATA_DIR is not set; it must be the directory of the member's volume"),
        ({"STELE_DATA_DIR": "/nowhere"}, "STELE_DATA_DIR is '/nowhere'"),
        ({"STELE_DATA_DIR": "/", "STELE_TRANSFER_PORT": "x"}, "STELE_TRANSFER_PORT is 'x'"),
        (
            {"STELE_DATA_DIR": "/", "STELE_TRANSFER_PORT": "²"},
            "STELE_TRANSFER_PORT is '²'; it must be a whole number",
        ),
        ({"STELE_DATA_DIR": "/", "STELE_TRANSFER_PORT": "9" * 5000}, "STELE_TRANSFER_PORT is '9999"),
    ],
)
def test_wrong_settings_are_named(environment, text):
    with pytest.raises(BadInput, match=text):
        read(Settings, environment)


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (["--help"], 0, ["STELE_DATA_DIR", "STELE_BIND", "STELE_TRANSFER_PORT", "(7002)"]),
        (["--nonsense"], 2, ["stele-transfer: error", "--nonsense"]),
        (["nonsense"], 2, ["stele-transfer: error", "nonsense"]),
        ([], 2, ["stele-transfer: STELE_DATA_DIR is not set"]),
    ],
)
def test_the_program_tells_its_settings_and_takes_no_arguments(arguments, code, texts):
    command = [sys.executable, "-m", "stele.transfer.__main__", *arguments]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    told = done.stderr if code else done.stdout
    assert (done.returncode, [text for text in texts if text not in told]) == (code, []), told
    assert "Traceback" not in told


def test_a_port_that_is_taken_is_told(volume):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = {"STELE_DATA_DIR": str(volume), "STELE_BIND": "127.0.0.1", "STELE_TRANSFER_PORT": str(port)}
        command = [sys.executable, "-m", "stele.transfer.__main__"]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"stele-transfer: cannot listen on 127.0.0.1 port {port}: "
    )
    assert "Traceback" not in done.stderr
