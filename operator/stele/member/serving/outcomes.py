"""What callers await of requests with one reply. Coroutines are apart from the router, which is compiled."""

from collections.abc import Awaitable
from typing import TypeVar

from stele.core.kv.commands import Failure, Reply
from stele.errors import Refused

Result = TypeVar("Result")


async def first(replies: Awaitable[list[Result]]) -> Result:
    """Return the only reply."""
    return (await replies)[0]


async def done(replies: Awaitable[list[Reply]]) -> None:
    """Raise Refused when the only reply is a failure."""
    reply = (await replies)[0]
    if isinstance(reply, Failure):
        raise Refused(reply.text, code=reply.code)
