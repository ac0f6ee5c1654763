"""The master's client of the copier pod: submits, queries and cancels copy jobs."""

import ssl
from typing import Any, Protocol

import aiohttp
import msgspec

from stele.adapters.body import read_body
from stele.adapters.tls.http_client import CheckedConnector
from stele.adapters.tls.peer import Certificate
from stele.core.control.member_settings import LogLevel
from stele.errors import BadInput, Conflict, Corrupt, Unavailable
from stele.wire.copy.jobs import CopyJob, CopyJobStatus
from stele.wire.unreadable import UNREADABLE
from stele.wire.urls import HTTPS, LOG_LEVEL

COPIER_PORT = 7010
REQUEST_SECONDS_MAX = 5.0
STATUS_BYTES_MAX = 4 * 1024 * 1024

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CopyJobStatus).decode


class CopierDialling(Protocol):
    """How the copier of one cluster is dialled with TLS, and who may answer."""

    @property
    def context(self) -> ssl.SSLContext | None:
        """What to dial with; None while there is no certificate."""
        ...

    @property
    def name(self) -> str:
        """The name that the copier's certificate has."""
        ...

    def refusal(self, name: str, certificate: Certificate) -> str:
        """Return why who shows this certificate is not the copier of that name, or nothing."""
        ...


class CopierClient:
    """Client of one copier at `http://HOST:PORT`, or `https`, where it is known by its certificate; use
    inside `async with`. Every call can be repeated.

    Raises Unavailable (no answer, or busy: retry), Conflict (another job has this session), BadInput (the
    copier rejects the job), Corrupt (the answer is not of this protocol).
    """

    def __init__(
        self,
        url: str,
        dialling: CopierDialling | None = None,
        deadline_seconds: float = REQUEST_SECONDS_MAX,
    ) -> None:
        self._url = url.rstrip("/")
        self._dialling = dialling if url.startswith(HTTPS) else None
        self._deadline_seconds = deadline_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "CopierClient":
        timeout = aiohttp.ClientTimeout(total=self._deadline_seconds)
        connector = None if self._dialling is None else CheckedConnector(self._dialling.refusal)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def submit(self, job: CopyJob) -> CopyJobStatus:
        """Start the job, or return the status of the same job."""
        status, body = await self._ask("POST", "/v1/jobs", _encode(job))
        return self._status(status, body)

    async def status(self, session: str) -> CopyJobStatus | None:
        """Return the job's status; None when the copier does not know it, after a restart: submit it
        again."""
        status, body = await self._ask("GET", f"/v1/jobs/{session}")
        return None if status == 404 else self._status(status, body)

    async def cancel(self, session: str) -> None:
        """Stop and forget the job; an unknown one is fine."""
        status, body = await self._ask("DELETE", f"/v1/jobs/{session}")
        if status not in (204, 404):
            self._status(status, body)

    async def set_log_level(self, level: LogLevel) -> None:
        """Change the level of the copier's log; one that does not take it, as an older one, keeps its own."""
        await self._ask("PUT", LOG_LEVEL, _encode(level))

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        assert self._session is not None, "use the client inside `async with`"
        url = f"{self._url}{path}"
        given: dict[str, Any] = {"data": body, "allow_redirects": False, **self._tls()}
        try:
            async with self._session.request(method, url, **given) as answer:
                return answer.status, await read_body(answer, STATUS_BYTES_MAX)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"copier {url}: {type(error).__name__} {error}") from error

    def _tls(self) -> dict[str, Any]:
        if self._dialling is None:
            return {}
        if (context := self._dialling.context) is None:
            raise Unavailable("the operator has no certificate for this cluster")
        return {"ssl": context, "server_hostname": self._dialling.name}

    def _status(self, status: int, body: bytes) -> CopyJobStatus:
        text = f"copier {self._url} answered {status}: {body[:300].decode('utf-8', 'replace')}"
        if status in (400, 413):
            raise BadInput(text)
        if status == 409:
            raise Conflict(text)
        if status not in (200, 202):
            raise Unavailable(text)
        try:
            return _decode(body)
        except UNREADABLE as error:
            raise Corrupt(f"{text}: {error}") from error
