"""`cli`: with which arguments and password redis-cli runs, and where its port leads."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.served_objects import cluster, member
from tests.cli.test_tablets import Shell
from tests.fakes.pod_proxy import fake_api

SCRIPT = """#!{python}
import json, os, socket, sys
words = sys.argv[1:]
with socket.create_connection(("127.0.0.1", int(words[words.index("-p") + 1]))) as made:
    made.sendall(b"PING")
    answer = made.recv(100).decode()
ca = open(words[words.index("--cacert") + 1]).read() if "--cacert" in words else ""
line = open("/proc/self/cmdline").read() if os.path.exists("/proc/self/cmdline") else ""
facts = dict(words=words, auth=os.environ.get("REDISCLI_AUTH"), ca=ca, answer=answer, line=line)
json.dump(facts, open(os.environ["FACTS"], "w"))
sys.exit(3 if "fail" in words else 0)
"""
CLOSED = {"security": {"tls": "Required", "auth": "Required"}}


def secret(**data: str) -> dict[str, Any]:
    return {
        "data": {
            key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in data.items()
        }
    }


SECRETS: dict[str, Any] = {
    "secrets/demo-default-user": secret(password="s3cret"),
    "secrets/demo-ca-cert": secret(ca_crt="PEM"),
}


@asynccontextmanager
async def shell(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], **how: Any
) -> AsyncIterator[Shell]:
    """A member whose port answers PONG, and a redis-cli that writes down how it runs."""
    script = folder / "bin" / "redis-cli"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setenv("FACTS", str(folder / "facts"))
    monkeypatch.delenv("REDISCLI_AUTH", raising=False)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"PING"
        writer.write(b"PONG")
        await writer.drain()
        writer.close()

    known = {
        "tabletclusters": {"items": [cluster(**status)], "metadata": {}},
        "tabletmembers": {"items": [member(0, state="Unreachable"), member(1)], "metadata": {}},
        **how.pop("secrets", SECRETS),
    }
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pods = {"demo-1:6379": f"http://127.0.0.1:{port}"}
        async with fake_api(folder, pods, known, **how) as path:
            yield Shell(run, path)


async def test_it_runs_with_ca_and_password_and_no_password_in_its_arguments(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(run, tmp_path, monkeypatch, CLOSED) as ask:
        ran = await ask(
            "cli", "demo", "--kubeconfig", str(tmp_path / "kubeconfig"), "--", "-n", "1", "GET", "x"
        )
    assert (ran.code, ran.err) == (0, "")
    facts = json.loads((tmp_path / "facts").read_text())
    assert (facts["answer"], facts["auth"], facts["ca"]) == ("PONG", "s3cret", "PEM")
    assert "s3cret" not in facts["line"]
    assert facts["words"][:2] == ["-h", "127.0.0.1"]
    assert facts["words"][4] == "--tls"
    assert "-n" in facts["words"]
    assert not Path(facts["words"][6]).exists(), "the CA is left behind"


async def test_options_before_the_command_are_not_for_redis_cli(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(run, tmp_path, monkeypatch, {}, secrets={}) as ask:
        given = ("--kubeconfig", str(ask.kubeconfig), "cli", "demo", "--", "-n", "1", "SET", "k", "v")
        ran = await asyncio.to_thread(run, "-n", "ns", *given)
        assert (ran.code, ran.err) == (0, "")
        assert json.loads((tmp_path / "facts").read_text())["words"][4:] == ["-n", "1", "SET", "k", "v"]
        assert (await asyncio.to_thread(run, "--namespace=far", *given)).code == 1


async def test_an_open_cluster_needs_no_secret(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(run, tmp_path, monkeypatch, {}, secrets={}) as ask:
        ran = await ask("cli", "demo", "fail")
    facts = json.loads((tmp_path / "facts").read_text())
    assert (ran.code, facts["auth"], facts["ca"]) == (3, None, "")
    assert facts["words"][4:] == ["fail"]


async def test_a_password_of_the_user_is_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_right = SECRETS | {"secrets/demo-default-user": None}
    async with shell(run, tmp_path, monkeypatch, CLOSED, secrets=no_right) as ask:
        refused = await ask("cli", "demo")
        monkeypatch.setenv("REDISCLI_AUTH", "mine")
        assert (await ask("cli", "demo")).code == 0
    assert (refused.code, "secrets/demo-default-user is forbidden" in refused.err) == (1, True)
    assert json.loads((tmp_path / "facts").read_text())["auth"] == "mine"


async def test_what_is_missing_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = SECRETS | {"secrets/demo-ca-cert": {"data": {"ca.crt": "%"}}}
    async with shell(run, tmp_path, monkeypatch, CLOSED, secrets=wrong, forbidden=["portforward"]) as ask:
        ran = await ask("cli", "demo")
        assert (ran.code, "Secret demo-ca-cert has no usable key ca.crt" in ran.err) == (2, True)
        monkeypatch.setenv("PATH", str(tmp_path / "none"))
        ran = await ask("cli", "demo")
        assert (ran.code, "redis-cli is not on the PATH" in ran.err) == (2, True)
