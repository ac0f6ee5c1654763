"""Opens an encrypted connection to another member, which carries nothing until it is used."""

import asyncio
import ssl
from typing import cast

from stele.adapters.rpc.connection import Connection
from stele.adapters.tls.layer import TlsLayer


class Encrypted(asyncio.Protocol):
    """A connection whose handshake is done. The other side, which is to be greeted, says nothing yet."""

    def __init__(self) -> None:
        self._transport = cast(asyncio.Transport, None)
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        self._lost = True

    @property
    def certificate(self) -> dict[str, object]:
        """The verified certificate of the other side."""
        return cast(dict[str, object], self._transport.get_extra_info("peercert", {}))

    @property
    def chain(self) -> frozenset[bytes]:
        """What that was verified by."""
        return cast(frozenset[bytes], self._transport.get_extra_info("peerchain"))

    def abort(self) -> None:
        """End it unused."""
        self._transport.abort()

    def carry(self, connection: Connection) -> None:
        """Use it for this connection. Raises ConnectionError when it has ended."""
        if self._lost:
            raise ConnectionError("the other side closed the connection after the handshake")
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)


async def dial(context: ssl.SSLContext, host: str, port: int) -> Encrypted:
    """Connect and shake hands. Raises OSError, with the reason when the other side is not trusted."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()
    encrypted = Encrypted()

    def on_end(failure: str) -> None:
        if not done.done():
            done.set_result(failure)

    raw, _ = await loop.create_connection(
        lambda: TlsLayer(context, lambda: encrypted, on_end, server_side=False), host, port
    )
    try:
        failure = await done
    except BaseException:
        raw.abort()
        raise
    if failure:
        raise ConnectionError(f"TLS: {failure}")
    return encrypted
