"""Requests of people to port 7001 of members, in the way that the level of TLS among members asks for.

Plain ones go through `pods/proxy`. Where members are dialled with TLS, they go through `pods/portforward`,
with the certificate in the Secret `CLUSTER-admin-tls`: the API server sees neither request nor answer.
Who may not forward ports goes on with plain ones, which members take until `Required`.
"""

import base64
import binascii
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp

from stele.adapters.kubernetes.api import (
    CLUSTERS,
    MEMBERS,
    REQUEST_SECONDS,
    SECRETS,
    SILENCE_SECONDS,
    Api,
    NotFound,
    error_of,
)
from stele.adapters.kubernetes.port_forward import forwarded
from stele.adapters.members.client import ADMIN_PORT
from stele.adapters.tls.http_client import CheckedConnector
from stele.adapters.tls.identity import read_dialling
from stele.adapters.tls.peer import Certificate, Expected, peer_refusal
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.core.security.rotation import GRACE_SECONDS
from stele.errors import BadInput, Refused, SteleError, Unavailable
from stele.model import TabletCluster
from stele.model.common import Unreadable
from stele.wire.pods import admin_secret_name

Query = Mapping[str, str]

NO_RIGHT = (
    "you may not read Secret {secret}, which is the right to administer members of {cluster}: someone "
    "who may grant rights in namespace {namespace} can give it to you: kubectl -n {namespace} create role "
    "{cluster}-data-admin --verb=get --resource=secrets --resource-name={secret}; kubectl -n {namespace} "
    "create role {cluster}-port-forward --verb=get,create --resource=pods/portforward; and a "
    "rolebinding of each for you"
)
NO_FORWARD = (
    "to ask members with TLS takes the right to get and create pods/portforward, which you do not have in "
    "namespace {namespace}"
)
NO_SECRET = (
    "Secret {secret} has no usable certificate ({error}): the operator makes it; the condition "
    "CertificatesHealthy of {cluster} says why there is none"
)


@dataclass(frozen=True)
class _Admin:
    """What members of one cluster are asked with."""

    cluster: str
    context: ssl.SSLContext

    def refusal(self, name: str, certificate: Certificate) -> str:
        expected = Expected(self.cluster, (Role.MEMBER,), name)
        return peer_refusal(certificate, expected, time.time(), GRACE_SECONDS)


class _NotForwardedError(Exception):
    """The API server does not forward ports for this user; nothing was sent."""


class AdminPort:
    """Members' port 7001 in one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._admins: dict[str, _Admin | str] = {}

    async def ask(self, method: str, member: str, path: str, query: Query) -> tuple[int, str]:
        """Return status and body of the answer.

        Raises Unavailable without one, and Refused without a certificate where one is needed.
        """
        admin = await self._admin(member)
        if isinstance(admin, _Admin):
            timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
            try:
                async with self._request(admin, (method, member, path), query, timeout) as answer:
                    return answer.status, await answer.text(errors="replace")
            except _NotForwardedError as error:
                admin = str(error)
        status, text = await self._api.to_pod(method, self._namespace, _pod(member), path, query)
        if status == HTTPStatus.UPGRADE_REQUIRED:
            raise Refused(f"{member} takes only TLS: {admin or text.strip()}", "FORBIDDEN")
        if status == HTTPStatus.FORBIDDEN and admin:
            raise Refused(f"{error_of(method, path, status, text).text}; {admin}", "FORBIDDEN")
        return status, text

    async def stream(self, member: str, path: str) -> AsyncGenerator[bytes]:
        """Iterate the body of the answer to a GET, however large."""
        admin = await self._admin(member)
        if isinstance(admin, _Admin):
            try:
                async for chunk in self._stream_with_tls(admin, member, path):
                    yield chunk
                return
            except _NotForwardedError as error:
                admin = str(error)
        try:
            place = self._namespace, _pod(member)
            async with self._api.through_pod("GET", place, path, None, {}) as answer:
                async for chunk in answer.content.iter_any():
                    yield chunk
        except SteleError as error:
            raise type(error)(f"{error.text}; {admin}" if admin else error.text, error.code) from error

    async def _stream_with_tls(self, admin: _Admin, member: str, path: str) -> AsyncGenerator[bytes]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=SILENCE_SECONDS)
        async with self._request(admin, ("GET", member, path), {}, timeout) as answer:
            if answer.status >= 300:
                raise error_of("GET", path, answer.status, await answer.text(errors="replace"))
            async for chunk in answer.content.iter_any():
                yield chunk

    @asynccontextmanager
    async def _request(
        self, admin: _Admin, way: tuple[str, str, str], query: Query, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer; `way` is the method, the member and the path. Raises _NotForwardedError."""
        method, member, path = way
        async with AsyncExitStack() as stack:
            try:
                tunnel = self._api.forward(self._namespace, member, ADMIN_PORT)
                socket = await stack.enter_async_context(tunnel)
            except Refused as error:
                raise _NotForwardedError(NO_FORWARD.format(namespace=self._namespace)) from error
            port, forward, make_socket = await stack.enter_async_context(forwarded(socket))
            url, connector = f"https://127.0.0.1:{port}{path}", CheckedConnector(admin.refusal, make_socket)
            given: dict[str, Any] = {"params": query, "ssl": admin.context, "server_hostname": member}
            given["allow_redirects"] = False
            try:
                async with (
                    aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
                    http.request(method, url, **given) as answer,
                ):
                    yield answer
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                text = forward.problem or f"{type(error).__name__}: {error}"
                raise Unavailable(f"member {member}: {path}: {text}") from error

    async def _admin(self, member: str) -> "_Admin | str":
        """Return what to ask a member with; for a plain request, why there is no certificate for it."""
        cluster = await self._cluster_of(member)
        if cluster is None:
            return ""
        name = cluster.metadata.name
        if name not in self._admins:
            self._admins[name] = await self._admin_of(cluster)
        return self._admins[name]

    async def _cluster_of(self, member: str) -> TabletCluster | None:
        """Return None where that cannot be read: the member itself says what it takes."""
        try:
            stored = await self._api.get(MEMBERS, self._namespace, member)
            name = str(stored["spec"]["cluster"])
            found = TabletCluster.read(await self._api.get(CLUSTERS, self._namespace, name))
        except (NotFound, Refused, KeyError):
            return None
        return None if isinstance(found, Unreadable) else found

    async def _admin_of(self, cluster: TabletCluster) -> "_Admin | str":
        level, name = cluster.status.security.members or InternalTls.OFF, cluster.metadata.name
        if not level.dials_tls:
            return ""
        secret = admin_secret_name(name)
        try:
            stored = await self._api.get(SECRETS, self._namespace, secret)
            parts = [base64.b64decode(stored["data"][key]) for key in ("tls.crt", "tls.key", "ca.crt")]
            return _Admin(cluster.volumes_uid, read_dialling(*parts))
        except Refused:
            return NO_RIGHT.format(secret=secret, cluster=name, namespace=self._namespace)
        except (NotFound, BadInput, KeyError, TypeError, binascii.Error) as error:
            return NO_SECRET.format(secret=secret, cluster=name, error=error)


def _pod(member: str) -> str:
    return f"{quote(member, safe='')}:{ADMIN_PORT}"
