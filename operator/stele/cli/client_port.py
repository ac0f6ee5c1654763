"""The way to a member's port for clients through the API server, and what clients log in with.

As for redis-cli, a password is in the variable PASSWORD, and a certificate in files. Without the variable the
password is read from the Secret of the user.
"""

import asyncio
import base64
import binascii
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stele.cli import output as out
from stele.client.resp import Connection, Place
from stele.core.control.member_settings import ClientAuth, ClientCertificates, ClientTls
from stele.errors import BadInput, SteleError, Unavailable
from stele.model.member import MemberState
from stele.model.user import DEFAULT_USER, default_user_name

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletCluster

LOCAL = "127.0.0.1"
RESP_PORT = 6379
PASSWORD = "REDISCLI_AUTH"
"""Variable with the password: in arguments every user of the machine would see it."""

Pair = tuple[Path, Path]
"""Files with a certificate and its key."""


@dataclass(frozen=True)
class Login:
    """How a client connects: with which TLS, and as whom. Without a password it sends no AUTH."""

    tls: ssl.SSLContext | None
    user: str
    password: str

    @property
    def who(self) -> str:
        """Return the user, for people."""
        return self.user or (DEFAULT_USER if self.password else "this client")

    async def connect(self, place: Place) -> Connection:
        """Return a connection that is logged in. Raises ReplyError, and one of ERRORS."""
        made = await Connection.open(place, self.tls)
        try:
            if self.password:
                words = (self.user, self.password) if self.user else (self.password,)
                await made.ask(b"AUTH", *(each.encode() for each in words))
        except BaseException:
            made.close()
            raise
        return made


async def login_of(console: "Console", cluster: "TabletCluster", user: str, pair: Pair | None) -> Login:
    """Return the login of a user, or of one with this certificate and its key, else of the user default.

    Raises BadInput for what does not fit the cluster.
    """
    name, security = cluster.metadata.name, cluster.status.security
    ca = await ca_of(console, cluster)
    if pair is not None and not ca:
        raise BadInput(f"--cert is given, and {name} has no TLS for clients: leave --cert and --key out")
    if pair is None and security.client_certificates is ClientCertificates.REQUIRE:
        raise BadInput(f"clients of {name} have to show a certificate: give --cert and --key")
    if user:
        password = await _password_of_user(console, name, user)
    else:
        password = os.environ.get(PASSWORD, "") if pair else await password_of(console, cluster)
    return Login(context_of(ca, pair) if ca else None, user, password)


async def password_of(console: "Console", cluster: "TabletCluster") -> str:
    """Return the password of PASSWORD, else that of the user default; empty where none is needed."""
    if (given := os.environ.get(PASSWORD)) is not None:
        return given
    if cluster.status.security.auth is not ClientAuth.REQUIRED:
        return ""
    return await _secret(console, default_user_name(cluster.metadata.name), "password")


async def _password_of_user(console: "Console", cluster: str, user: str) -> str:
    if given := os.environ.get(PASSWORD):
        return given
    declared = {each.user: each for each in await console.users(cluster)}
    if user in declared:
        secret = declared[user].secret
    elif user == DEFAULT_USER:
        secret = default_user_name(cluster)
    else:
        known = ", ".join(sorted(declared)) or "none"
        raise BadInput(f"--user is {user}; the TabletUsers of {cluster} declare: {known}", "UNKNOWN_USER")
    if not secret:
        text = f"--user is {user}, who has no password: show the user's certificate (--cert, --key)"
        raise BadInput(f"{text} and leave --user out")
    return await _secret(console, secret, "password")


def pair_of(certificate: Path | None, key: Path | None) -> Pair | None:
    """Return both files, or None without any. Raises BadInput for one without the other."""
    if certificate is not None and key is not None:
        return certificate, key
    if certificate is not None or key is not None:
        given, missing = ("--cert", "--key") if key is None else ("--key", "--cert")
        raise BadInput(f"{given} is given and {missing} is not: a client shows a certificate and has its key")
    return None


def context_of(ca: str, pair: Pair | None) -> ssl.SSLContext:
    """Return a context that trusts the cluster's CA alone; no name fits the address of this machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=ca)
    except ssl.SSLError as error:
        raise BadInput(f"the Secret with the CA of the cluster has no certificate: {error}") from None
    if pair is not None:
        _load(context, *pair)
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        # With a passphrase given, a key that needs another one fails, and OpenSSL asks nobody for it.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        text = f"--cert {certificate} and --key {key} cannot be used: {error.strerror or error}"
        raise BadInput(f"{text}; expected a certificate and its key without passphrase, as PEM") from None


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
