"""Waiting for the end of what a command began: the option --wait."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from stele.errors import Unavailable

WAIT_SECONDS_MAX = 600.0
"""Seconds that --wait waits."""

POLL_SECONDS = 1.0
"""Seconds between two reads while a command waits."""


class Progress(NamedTuple):
    """What to print now, nothing if empty; with `done`, the result."""

    text: str
    done: bool = False


async def follow(look: Callable[[], Awaitable[Progress]], undone: str, hint: str = "") -> str:
    """Print the progress whenever it changes, and return the result.

    Raises Unavailable, which begins with `undone` and ends with `hint`, after WAIT_SECONDS_MAX.
    """
    import asyncio
    import time

    end, shown = time.monotonic() + WAIT_SECONDS_MAX, ""
    while time.monotonic() < end:
        text, done = await look()
        if done:
            return text
        if text and text != shown:
            print(text)
        shown = text
        await asyncio.sleep(POLL_SECONDS)
    raise Unavailable(f"{undone} after {WAIT_SECONDS_MAX:g} s{': ' * bool(shown)}{shown}{hint}")
