"""`kubectl stele cli`: redis-cli of this machine, through the API server, with CA and password."""

import asyncio
import base64
import binascii
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli import output as out
from stele.cli.options import Where, on_cluster
from stele.cli.status import ClusterArgument
from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.errors import BadInput, SteleError, Unavailable
from stele.model.member import MemberState

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletCluster

LOCAL = "127.0.0.1"
RESP_PORT = 6379
PROGRAM = "redis-cli"
PASSWORD = "REDISCLI_AUTH"
"""Variable from which redis-cli has the password: in its arguments every user of the machine would see it."""


@on_cluster
def cli(
    where: Where,
    cluster: ClusterArgument,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="For redis-cli, after --.")
    ] = None,
) -> None:
    """Run redis-cli against a cluster, as the user default unless REDISCLI_AUTH and --user say another one.

    A port of this machine leads to a member while it runs. Exits with the code of redis-cli.

    \b
    Examples:
      kubectl stele cli demo -n stele
      kubectl stele cli demo -n stele -- GET greeting
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise BadInput(f"{PROGRAM} is not on the PATH: install it, such as by the package redis-tools")
    code = where.ask(lambda console: _run(console, cluster, program, arguments or []))
    if code:
        raise typer.Exit(code)


async def _run(console: "Console", name: str, program: str, arguments: list[str]) -> int:
    """Run the program with a port, and return its exit code."""
    cluster = await console.cluster(name)
    given = dict(os.environ)
    if cluster.status.security.auth is ClientAuth.REQUIRED and PASSWORD not in given:
        secret = await console.secret(f"{name}-default-user")
        given[PASSWORD] = _text(secret, f"{name}-default-user", "password")
    way = _Way(console, await _member(console, name))
    with tempfile.TemporaryDirectory(prefix="kubectl-stele-") as folder:
        tls = await _tls(console, cluster, Path(folder))
        async with await asyncio.start_server(way.take, LOCAL, 0) as server:
            port = server.sockets[0].getsockname()[1]
            with suppress(RuntimeError):
                # Ctrl-C is for the program, which may go on. Threads that are not the main one hear of none.
                asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
            words = ["-h", LOCAL, "-p", str(port), *tls, *arguments]
            process = await asyncio.create_subprocess_exec(program, *words, env=given)
            try:
                return await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    process.terminate()


async def _member(console: "Console", cluster: str) -> str:
    """Return a member that serves clients. Raises Unavailable when there is none."""
    for each in await console.members(cluster):
        if each.status.state is MemberState.ACTIVE:
            return each.metadata.name
    raise Unavailable(f"no member of {cluster} is Active: kubectl stele members {cluster}")


async def _tls(console: "Console", cluster: "TabletCluster", folder: Path) -> list[str]:
    """Return the arguments for TLS, where clients use it."""
    if cluster.status.security.tls in (None, ClientTls.OFF):
        return []
    name = f"{cluster.metadata.name}-ca-cert"
    (folder / "ca.crt").write_text(_text(await console.secret(name), name, "ca.crt"))
    return ["--tls", "--cacert", str(folder / "ca.crt")]


def _text(data: dict[str, str], name: str, key: str) -> str:
    try:
        return base64.b64decode(data[key], validate=True).decode()
    except (KeyError, binascii.Error, UnicodeDecodeError):
        raise BadInput(f"Secret {name} has no usable key {key}: the operator makes it") from None


class _Way:
    """From the port of this machine to that of a member, for each connection anew."""

    def __init__(self, console: "Console", pod: str) -> None:
        self._console, self._pod = console, pod

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from stele.adapters.kubernetes.port_forward import Forward

        try:
            async with self._console.forward(self._pod, RESP_PORT) as socket:
                forward = Forward(socket)
                await forward.carry(reader, writer)
            if forward.problem:
                out.say_error(f"pod {self._pod}: {forward.problem}")
        except (SteleError, OSError) as error:
            out.say_error(str(error))
        finally:
            writer.close()
