"""HTTP of aiohttp with TLS, where the other side is known by the name in its certificate."""

import socket
from collections.abc import Callable

import aiohttp
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from stele.adapters.tls.peer import Certificate

KEEP_SECONDS = 30.0
"""How long a connection is kept that nobody uses."""

Refusal = Callable[[str, Certificate], str]


class CheckedConnector(aiohttp.TCPConnector):
    """Checks, whenever a connection is used, that the certificate is that of the request's `server_hostname`.

    `refusal` returns why a certificate is not that of a name, or nothing. `make_socket` makes the sockets, if
    it is given.
    """

    def __init__(
        self, refusal: Refusal, make_socket: Callable[[object], socket.socket] | None = None
    ) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEP_SECONDS, socket_factory=make_socket)
        self._refusal = refusal

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """Extend aiohttp.TCPConnector."""
        connection = await super().connect(req, traces, timeout)
        if req.is_ssl() and connection.transport is not None:
            name = req.server_hostname or ""
            certificate = connection.transport.get_extra_info("peercert") or {}
            if why := self._refusal(name, certificate):
                # At once: a loop that ends now would leave the socket to the end of a TLS shutdown.
                connection.transport.abort()
                connection.close()
                raise aiohttp.ClientConnectionError(f"not {name}: {why}")
        return connection
