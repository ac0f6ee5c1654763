"""The process that copies tablets into a volume."""

from typing import Protocol


class Transfer(Protocol):
    """A client of the process that copies tablets into this member's volume."""

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request.

        Raises Refused when it is answered with an error, Unavailable when there is no answer.
        """
        ...

    async def close(self) -> None: ...
