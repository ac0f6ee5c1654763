"""Requests of people to port 7001 of members, in the way that the level of TLS among members asks for.

Plain ones go through `pods/proxy`. Where members are dialled with TLS, they go through `pods/portforward`,
with the certificate of administrators.
"""

from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from urllib.parse import quote

import aiohttp

from stele.adapters.kubernetes import admin_tls
from stele.adapters.kubernetes.admin_tls import LONG, Admin, Asked, NotForwardedError, admin_of
from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS, REQUEST_SECONDS, Api, NotFound, error_of
from stele.adapters.members.client import ADMIN_PORT
from stele.core.security.identity import Role
from stele.errors import Refused, SteleError
from stele.model import TabletCluster
from stele.model.common import Unreadable

Query = Mapping[str, str]
QUICK = aiohttp.ClientTimeout(total=REQUEST_SECONDS)


class AdminPort:
    """Members' port 7001 in one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._admins: dict[str, Admin | str] = {}

    async def ask(self, method: str, member: str, path: str, query: Query) -> tuple[int, str]:
        """Return status and body of the answer.

        Raises Unavailable without one, and Refused without a certificate where one is needed.
        """
        admin = await self._admin(member)
        if isinstance(admin, Admin):
            way = self._api, admin, self._asked(member)
            try:
                async with admin_tls.request(*way, method, path, params=query, timeout=QUICK) as answer:
                    return answer.status, await answer.text(errors="replace")
            except NotForwardedError as error:
                admin = error.text
        status, text = await self._api.to_pod(method, self._namespace, _pod(member), path, query)
        if status == HTTPStatus.UPGRADE_REQUIRED:
            raise Refused(f"{member} takes only TLS: {admin or text.strip()}", "FORBIDDEN")
        if status == HTTPStatus.FORBIDDEN and admin:
            raise Refused(f"{error_of(method, path, status, text).text}; {admin}", "FORBIDDEN")
        return status, text

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
                raise error_of("GET", path, answer.status, await answer.text(errors="replace"))
            async for chunk in answer.content.iter_any():
                yield chunk

    def _asked(self, member: str) -> Asked:
        return Asked(self._namespace, member, ADMIN_PORT, Role.MEMBER, member)

    async def _admin(self, member: str) -> Admin | str:
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

    async def _admin_of(self, cluster: TabletCluster) -> Admin | str:
        try:
            return await admin_of(self._api, self._namespace, cluster) or ""
        except Refused as refused:
            return refused.text


def _pod(member: str) -> str:
    return f"{quote(member, safe='')}:{ADMIN_PORT}"
