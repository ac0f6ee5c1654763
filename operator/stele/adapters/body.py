"""Bounded reading of HTTP response bodies."""

import aiohttp

from stele.errors import Corrupt


async def read_body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Read the whole body; aiohttp's `content.read(n)` returns whatever has arrived.

    Raises Corrupt when it exceeds `bytes_max`, and ClientError when the response is cut off.
    """
    chunks: list[bytes] = []
    left = bytes_max
    while chunk := await answer.content.read(left + 1):
        chunks.append(chunk)
        left -= len(chunk)
        if left < 0:
            raise Corrupt(f"{answer.url} answered with more than {bytes_max} bytes")
    return b"".join(chunks)
