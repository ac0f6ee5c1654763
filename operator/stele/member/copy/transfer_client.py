"""HTTP client of the transfer process in the other container of this pod."""

import aiohttp

from stele.adapters import pod_token
from stele.errors import Refused, Unavailable
from stele.member.settings import Settings
from stele.wire.urls import http_root

CALL_SECONDS_MAX = 10.0


class LocalTransfer:
    """Implements ports.Transfer. `token` is that of the pod."""

    def __init__(self, settings: Settings, token: str) -> None:
        self._root = http_root(settings.local_host, settings.transfer_port)
        self._headers = {"Content-Type": "application/json", **pod_token.headers(token)}
        self._http: aiohttp.ClientSession | None = None
        self._closed = False

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Implement ports.Transfer."""
        if self._closed:
            raise Unavailable.closed()
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=CALL_SECONDS_MAX)
            self._http = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        try:
            async with self._http.request(method, self._root + path, data=body) as response:
                content, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(str(error) or type(error).__name__) from error
        except (RuntimeError, AssertionError) as error:
            # What aiohttp raises when its session is closed while a request is under way.
            if not self._closed:
                raise
            raise Unavailable.closed() from error
        if status >= 500:
            raise Unavailable(f"{status} {content[:200]!r}")
        if status >= 400:
            raise Refused(content.decode(errors="replace")[:500], "COPY_REFUSED")
        return content

    async def close(self) -> None:
        """Implement ports.Transfer."""
        self._closed = True
        if self._http is not None:
            await self._http.close()
