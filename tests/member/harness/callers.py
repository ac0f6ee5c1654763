"""Those who come to the ports of a pod, with a certificate or without: whether they are let in."""

import asyncio
import ssl
from collections.abc import Awaitable
from contextlib import suppress

import aiohttp

from stele.adapters import pod_token
from stele.wire import peer
from stele.wire.frames import FrameDecoder, encode_frame


async def is_welcome(host: str, port: int, hello: peer.Hello, context: ssl.SSLContext | None) -> bool:
    """Greet port 7000 of a member; return whether it welcomes the sender. None is without TLS."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(encode_frame(peer.encode_message(hello)))
        answers = FrameDecoder(4096).feed(await asyncio.wait_for(reader.read(4096), 10))
        return any(isinstance(peer.decode_greeting(answer), peer.Welcome) for answer in answers)
    finally:
        writer.transport.abort()


async def is_answered(
    status: int, request: tuple[str, str], context: ssl.SSLContext | None, token: str = ""
) -> bool:
    """Send a request, its method and the URL without a scheme; return whether its answer has the status of
    one that is let in."""
    method, url = request[0], f"{'http' if context is None else 'https'}://{request[1]}"
    given = pod_token.headers(token) if token else {}
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, url, headers=given, ssl=context or True) as answer,
    ):
        assert answer.status in (status, 401, 403, 426), await answer.text()
        return answer.status == status


async def is_let_in(coming: Awaitable[bool]) -> bool:
    """Return whether someone is: a connection that fails or is closed was refused."""
    with suppress(ConnectionError, ssl.SSLError, aiohttp.ClientError, peer.MessageError):
        return await coming
    return False
