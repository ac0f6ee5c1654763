"""A client of an API server that kills the operator at one of its writes."""

from collections.abc import Collection
from typing import Any

from stele.adapters.kubernetes.api import Kind


class Killed(Exception):  # noqa: N818
    """The operator ends here."""


class FusedApi:
    """Counts writes of these kinds, and raises Killed at the one with the number `kill_at`.

    `before`: the write is not done; otherwise it is, and nobody hears of it.
    """

    def __init__(self, api: Any, kinds: Collection[Kind]) -> None:
        self._api, self._kinds = api, kinds
        self.writes, self.kill_at, self.before = 0, -1, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def create(self, kind: Kind, *rest: Any) -> Any:
        return await self._write(kind, self._api.create, rest)

    async def replace(self, kind: Kind, *rest: Any) -> Any:
        return await self._write(kind, self._api.replace, rest)

    async def delete(self, kind: Kind, *rest: Any) -> Any:
        return await self._write(kind, self._api.delete, rest)

    async def patch_status(self, kind: Kind, *rest: Any) -> Any:
        return await self._write(kind, self._api.patch_status, rest)

    async def _write(self, kind: Kind, call: Any, rest: tuple[Any, ...]) -> Any:
        if kind not in self._kinds:
            return await call(kind, *rest)
        self.writes += 1
        if self.writes == self.kill_at and self.before:
            raise Killed
        done = await call(kind, *rest)
        if self.writes == self.kill_at:
            raise Killed
        return done
