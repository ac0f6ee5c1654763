"""The master's client of the copier pod: submits, queries and cancels copy jobs."""

import aiohttp
import msgspec

from stele.adapters.body import read_body
from stele.errors import BadInput, Conflict, Corrupt, Unavailable
from stele.wire.copy.jobs import CopyJob, CopyJobStatus
from stele.wire.unreadable import UNREADABLE

COPIER_PORT = 7010
REQUEST_SECONDS_MAX = 5.0
STATUS_BYTES_MAX = 4 * 1024 * 1024

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CopyJobStatus).decode


class CopierClient:
    """Client of one copier at `http://HOST:PORT`; use inside `async with`. Every call can be repeated.

    Raises Unavailable (no answer, or busy: retry), Conflict (another job has this session), BadInput (the
    copier rejects the job), Corrupt (the answer is not of this protocol).
    """

    def __init__(self, url: str, deadline_seconds: float = REQUEST_SECONDS_MAX) -> None:
        self._url = url.rstrip("/")
        self._deadline_seconds = deadline_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "CopierClient":
        timeout = aiohttp.ClientTimeout(total=self._deadline_seconds)
        self._session = aiohttp.ClientSession(timeout=timeout)
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

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        assert self._session is not None, "use the client inside `async with`"
        url = f"{self._url}{path}"
        try:
            async with self._session.request(method, url, data=body) as answer:
                return answer.status, await read_body(answer, STATUS_BYTES_MAX)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"copier {url}: {type(error).__name__} {error}") from error

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
