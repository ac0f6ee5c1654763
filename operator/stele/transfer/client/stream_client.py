"""Client of a session's streams: one connection to a transfer process, kept for the next request."""

import http.client
import ssl
from collections.abc import Callable
from http import HTTPStatus

from stele.adapters.tls.dialled import Secured, connect
from stele.core.control.commands import CopyItem
from stele.errors import BadInput, Stale, SteleError, Unavailable
from stele.wire.urls import host_and_port

SILENCE_SECONDS_MAX = 30.0
_FOR_NOW = (HTTPStatus.FORBIDDEN, HTTPStatus.UPGRADE_REQUIRED, HTTPStatus.TOO_MANY_REQUESTS)
"""What a source answers until the level of TLS or the certificate that the other side knows is the newest."""


class StreamClient:
    """Client for one thread. `url` is `http://host:port`, also where connections are `secured` by TLS."""

    def __init__(
        self, url: str, token: str, session: str, secured: Callable[[], Secured | None] = lambda: None
    ) -> None:
        """Check the URL, without connecting. Raises BadInput."""
        self.url, self.session, self._secured = url, session, secured
        place = host_and_port(url)
        if place is None:
            raise BadInput(
                f"source_url is '{url[:80]}', expected http://HOST:PORT of a member's transfer process"
            )
        self._place = place
        self._headers = {"Authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection | None = None

    def open(self, item: CopyItem, at: str) -> http.client.HTTPResponse:
        """Return the stream of a tablet's fragment from position `at`. Read it to its end, or `close`.

        Raises Stale or BadInput (SOURCE) when the source rejects it, Unavailable (SOURCE) for temporary
        errors, and OSError or HTTPException when the connection fails.
        """
        response = self._ask(
            f"/v1/sessions/{self.session}/partitions/{item.partition}"
            f"?generation={item.source_generation}&at={at}"
        )
        if response.status != 200:
            text = response.read(2000).decode("utf-8", "replace").strip()
            self.close()
            raise _refusal(response.status, text)
        return response

    def _ask(self, path: str) -> http.client.HTTPResponse:
        """Send a request on the kept connection, and once more on a new one if the source has closed it."""
        kept = self._connection
        if kept is not None:
            try:
                return self._request(kept, path)
            except (ConnectionError, ssl.SSLError, http.client.RemoteDisconnected):
                self.close()
        self._connection = connect(self._place, self._secured(), SILENCE_SECONDS_MAX)
        return self._request(self._connection, path)

    def _request(self, connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        connection.request("GET", path, headers=self._headers)
        return connection.getresponse()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refusal(status: int, text: str) -> SteleError:
    detail = f"the source answered {status}: {text}"
    if status == 409:
        return Stale(detail, "SOURCE")
    if 400 <= status < 500 and status not in _FOR_NOW:
        return BadInput(detail, "SOURCE")
    return Unavailable(detail, "SOURCE")
