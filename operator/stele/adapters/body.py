"""Bodies of HTTP answers, as a whole and with a limit."""

import aiohttp


async def read_body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """The whole body, or as much of it as `bytes_max` lets through: whoever decodes that finds it cut off.

    aiohttp's own `content.read(n)` gives what arrived so far. Raise ClientError when the answer breaks off.
    """
    parts: list[bytes] = []
    left = bytes_max
    while left and (part := await answer.content.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
