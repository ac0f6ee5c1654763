"""Work of which a part that fails keeps no other from being done."""

from collections.abc import Awaitable, Iterable

from stele.errors import SteleError

Kinds = tuple[type[SteleError], ...]


async def error_of(work: Awaitable[None], kinds: Kinds = (SteleError,)) -> SteleError | None:
    """Return why work failed. Raises errors of other kinds."""
    try:
        await work
    except kinds as error:
        return error
    return None


async def errors_of(steps: Iterable[Awaitable[None]], kinds: Kinds = (SteleError,)) -> list[SteleError]:
    """Take all steps, one after the other, and return why some failed. Errors of other kinds end it."""
    return [error for step in steps if (error := await error_of(step, kinds)) is not None]
