"""HTTP client of the transfer process in the other container of this pod."""

import aiohttp

from stele.errors import Refused, Unavailable
from stele.member.settings import Settings
from stele.wire.urls import http_root

CALL_SECONDS_MAX = 10.0
HEADERS = {"Content-Type": "application/json"}


class LocalTransfer:
    """Implements ports.Transfer."""

    def __init__(self, settings: Settings) -> None:
        self._root = http_root(settings.local_host, settings.transfer_port)
        self._http: aiohttp.ClientSession | None = None

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Implement ports.Transfer."""
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_SECONDS_MAX))
        try:
            async with self._http.request(method, self._root + path, data=body, headers=HEADERS) as response:
                content, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(str(error) or type(error).__name__) from error
        if status >= 500:
            raise Unavailable(f"{status} {content[:200]!r}")
        if status >= 400:
            raise Refused(content.decode(errors="replace")[:500], "COPY_REFUSED")
        return content

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
