"""The process that copies tablets into a volume."""

from typing import Protocol


class Transfer(Protocol):
    """The process that copies tablets into this member's volume."""

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Raise Refused for an answer that says no, and Unavailable when there is none."""
        ...

    async def close(self) -> None: ...
