"""Bounded reading of HTTP response bodies."""

from collections.abc import Callable

import aiohttp

from stele.errors import Corrupt


def _nothing(_size: int) -> None:
    return


async def read_body(
    answer: aiohttp.ClientResponse, bytes_max: int, arrived: Callable[[int], None] = _nothing
) -> bytes:
    """Read the whole body; aiohttp's `content.read(n)` returns whatever has arrived.

    `arrived` is called with the bytes of each piece. Raises what it raises, Corrupt when the body exceeds
    `bytes_max`, and ClientError when the response is cut off.
    """
    chunks: list[bytes] = []
    left = bytes_max
    while chunk := await answer.content.read(left + 1):
        arrived(len(chunk))
        chunks.append(chunk)
        left -= len(chunk)
        if left < 0:
            raise Corrupt(f"{answer.url} answered with more than {bytes_max} bytes")
    return b"".join(chunks)
