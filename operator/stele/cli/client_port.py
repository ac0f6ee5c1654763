"""The way to a member's port for clients through the API server, and what clients log in with."""

import asyncio
import base64
import binascii
import os
from typing import TYPE_CHECKING

from stele.cli import output as out
from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.errors import BadInput, SteleError, Unavailable
from stele.model.member import MemberState

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletCluster

LOCAL = "127.0.0.1"
RESP_PORT = 6379
PASSWORD = "REDISCLI_AUTH"
"""Variable with the password: in arguments every user of the machine would see it."""


async def password_of(console: "Console", cluster: "TabletCluster") -> str:
    """Return the password of PASSWORD, else that of the user default; empty where none is needed."""
    if (given := os.environ.get(PASSWORD)) is not None:
        return given
    if cluster.status.security.auth is not ClientAuth.REQUIRED:
        return ""
    return await _secret(console, f"{cluster.metadata.name}-default-user", "password")


async def ca_of(console: "Console", cluster: "TabletCluster") -> str:
    """Return the CA of the cluster as PEM; empty where clients use no TLS."""
    if cluster.status.security.tls in (None, ClientTls.OFF):
        return ""
    return await _secret(console, f"{cluster.metadata.name}-ca-cert", "ca.crt")


async def _secret(console: "Console", name: str, key: str) -> str:
    data = await console.secret(name)
    try:
        return base64.b64decode(data[key], validate=True).decode()
    except (KeyError, binascii.Error, UnicodeDecodeError):
        raise BadInput(f"Secret {name} has no usable key {key}: the operator makes it") from None


async def active_members(console: "Console", cluster: str) -> list[str]:
    """Return the members that serve clients. Raises Unavailable when there is none."""
    found = await console.members(cluster)
    active = [each.metadata.name for each in found if each.status.state is MemberState.ACTIVE]
    if not active:
        raise Unavailable(f"no member of {cluster} is Active: kubectl stele members {cluster}")
    return active


class Way:
    """From a port of this machine to members' ports, in turn, for each connection anew."""

    def __init__(self, console: "Console", pods: list[str]) -> None:
        self._console, self._pods, self._taken = console, pods, 0

    async def serve(self) -> asyncio.Server:
        """Return a server on a free port of LOCAL, which other users of this machine can reach, too."""
        return await asyncio.start_server(self._take, LOCAL, 0)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from stele.adapters.kubernetes.port_forward import Forward

        pod = self._pods[self._taken % len(self._pods)]
        self._taken += 1
        try:
            async with self._console.forward(pod, RESP_PORT) as socket:
                forward = Forward(socket)
                await forward.carry(reader, writer)
            if forward.problem:
                out.say_error(f"pod {pod}: {forward.problem}")
        except (SteleError, OSError) as error:
            out.say_error(str(error))
        finally:
            writer.close()
