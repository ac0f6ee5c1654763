"""Requests of people to port 7001 of members, in the way that the level of TLS among members asks for.

Plain ones go through `pods/proxy`. Where members are dialled with TLS, they go through `pods/portforward`,
with the certificate of administrators.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from stele.adapters.body import read_body
from stele.adapters.kubernetes import admin_tls
from stele.adapters.kubernetes.admin_tls import LONG, Admin, Asked, NotForwardedError, admin_of
from stele.adapters.kubernetes.api import (
    CLUSTERS,
    MEMBERS,
    REQUEST_SECONDS,
    Api,
    NotFound,
    error_of,
    refusal_of,
)
from stele.adapters.members.client import ADMIN_PORT
from stele.core.security.identity import Role
from stele.errors import Corrupt, Refused, SteleError
from stele.model import TabletCluster
from stele.model.common import Unreadable
from stele.wire.unreadable import UNREADABLE

METRICS_PORT = 7004
T = TypeVar("T")
Query = Mapping[str, str]
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Largest answer of a member that is read as a whole; one page of tablets has about 2 MiB at most."""
ERROR_BYTES_MAX = 4096
"""Bytes of an answer that are shown as an error."""
QUICK = aiohttp.ClientTimeout(total=REQUEST_SECONDS)


class AdminPort:
    """Members' port 7001 in one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._admins: dict[str, Admin | str] = {}
        self._clusters: dict[str, str] = {}

    async def ask(self, method: str, member: str, path: str, query: Query) -> tuple[int, bytes]:
        """Return status and body of the answer.

        Raises Unavailable without one, Corrupt for more than ANSWER_BYTES_MAX, and Refused without a
        certificate where one is needed.
        """
        read = _reading(member)
        admin = await self._admin(member)
        if isinstance(admin, Admin):
            way = self._api, admin, self._asked(member)
            try:
                async with admin_tls.request(*way, method, path, params=query, timeout=QUICK) as answer:
                    return answer.status, await read(answer)
            except NotForwardedError as error:
                admin = error.text
        status, body = await self._api.to_pod(method, (self._namespace, _pod(member)), path, query, read)
        text = body[:ERROR_BYTES_MAX].decode(errors="replace")
        if status == HTTPStatus.UPGRADE_REQUIRED:
            raise Refused(f"{member} takes only TLS: {admin or text.strip()}", "FORBIDDEN")
        if status == HTTPStatus.FORBIDDEN and admin:
            raise Refused(f"{error_of(method, path, status, text).text}; {admin}", "FORBIDDEN")
        return status, body

    async def metrics(self, pod: str, namespace: str, port: int = METRICS_PORT) -> bytes:
        """Return the metrics of a pod, which are at a port that is asked without TLS."""
        place, path = (namespace, f"{quote(pod, safe='')}:{port}"), "/metrics"
        status, body = await self._api.to_pod("GET", place, path, {}, _reading(pod))
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise error_of("GET", path, status, body[:ERROR_BYTES_MAX].decode(errors="replace"))
        return body

    async def stream(self, member: str, path: str) -> AsyncGenerator[bytes]:
        """Iterate the body of the answer to a GET, however large."""
        admin = await self._admin(member)
        if isinstance(admin, Admin):
            try:
                async for chunk in self._stream_with_tls(admin, member, path):
                    yield chunk
                return
            except NotForwardedError as error:
                admin = error.text
        try:
            place = self._namespace, _pod(member)
            async with self._api.through_pod("GET", place, path, None, {}) as answer:
                async for chunk in answer.content.iter_any():
                    yield chunk
        except SteleError as error:
            raise type(error)(f"{error.text}; {admin}" if admin else error.text, error.code) from error

    async def _stream_with_tls(self, admin: Admin, member: str, path: str) -> AsyncGenerator[bytes]:
        way = self._api, admin, self._asked(member)
        async with admin_tls.request(*way, "GET", path, timeout=LONG) as answer:
            if answer.status >= 300:
                raise await refusal_of(path, answer)
            async for chunk in answer.content.iter_any():
                yield chunk

    def _asked(self, member: str) -> Asked:
        return Asked(self._namespace, member, ADMIN_PORT, Role.MEMBER, member)

    async def _admin(self, member: str) -> Admin | str:
        """Return what to ask a member with; for a plain request, why there is no certificate for it.

        Both are read once: a command may ask a member many thousand times.
        """
        if (known := self._clusters.get(member)) is not None:
            return self._admins[known]
        cluster = await self._cluster_of(member)
        if cluster is None:
            return ""
        name = cluster.metadata.name
        if name not in self._admins:
            self._admins[name] = await self._admin_of(cluster)
        self._clusters[member] = name
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

    async def _admin_of(self, cluster: TabletCluster) -> Admin | str:
        try:
            return await admin_of(self._api, self._namespace, cluster) or ""
        except Refused as refused:
            return refused.text


def _reading(member: str) -> Callable[[aiohttp.ClientResponse], Awaitable[bytes]]:
    """Return how an answer of a member is read, with errors that name it."""

    async def read(answer: aiohttp.ClientResponse) -> bytes:
        try:
            return await read_body(answer, ANSWER_BYTES_MAX)
        except Corrupt:
            raise Corrupt(
                f"{member} answered with more than {ANSWER_BYTES_MAX} bytes, the limit of an answer: "
                f"something else may run in its pod; compare its image with the others' "
                f"(kubectl describe pod {member})",
                "TOO_LARGE",
            ) from None

    return read


def _pod(member: str) -> str:
    return f"{quote(member, safe='')}:{ADMIN_PORT}"


def decoded(member: str, path: str, body: bytes, form: type[T]) -> T:
    """Return a member's answer of this form. Raises Corrupt for another one."""
    try:
        return msgspec.json.decode(body, type=form)
    except UNREADABLE as error:
        raise Corrupt(
            f"{member} answered {path} with what this command cannot read ({error}): "
            "use kubectl stele of the same version as the member (kubectl stele version)"
        ) from error
