"""Work on many rows or tablets that other events need not wait for."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from stele.member import limits

T = TypeVar("T")


async def in_parts(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Iterate parts of the items, in order; the event loop handles other events between two parts.

    They may change what the caller has looked at before. A few items are one part, without such a pause.
    """
    for begin in range(0, len(items), limits.ROWS_PER_PART):
        if begin:
            await asyncio.sleep(0)
        yield items[begin : begin + limits.ROWS_PER_PART]
