"""Bodies of HTTP answers, as a whole and with a limit."""

import aiohttp

from stele.errors import Corrupt


async def read_body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The whole body; aiohttp's own `content.read(n)` gives what arrived so far.

    Raise Corrupt when there is more of it than `bytes_max`, and ClientError when the answer breaks off.
    """
    parts: list[bytes] = []
    left = bytes_max
    while part := await answer.content.read(left + 1):
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise Corrupt(f"{answer.url} answered with more than {bytes_max} bytes")
    return b"".join(parts)
