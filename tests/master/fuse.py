"""Faults at any write or exchange of a master: its process dies there, or the message is lost."""

from collections.abc import Callable

from stele.errors import Unavailable, Uncertain


class Crash(Exception):  # noqa: N818
    """The master's process dies here."""


def crash(after: bool, name: str) -> None:
    """The master's process ends here."""
    raise Crash


def lose(after: bool, name: str) -> None:
    """What was sent does not arrive, or its answer gets lost; the master lives on."""
    if name == "exchange" or not after:
        raise Unavailable(f"{name} was lost")
    raise Uncertain(f"the answer to {name} was lost")


class Fuse:
    """Counts down over all writes, and all exchanges that bring something, of one master.

    At zero it calls `act`, before or after that step was done: by default the master dies.
    """

    def __init__(
        self, at: int | None = None, after: bool = False, act: Callable[[bool, str], None] = crash
    ) -> None:
        self.left, self.after, self.act, self.count = at, after, act, 0

    def burn(self, name: str, *, done: bool) -> None:
        if done == self.after and self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.act(self.after, name)
        self.count += done
