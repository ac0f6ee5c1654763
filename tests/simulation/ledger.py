"""What transactions of clients must keep true."""

from collections.abc import Sequence

from tests.simulation.history import Violation

WHOLE = "transactions are whole"
COUNTED = "transactions happen once, one after the other"


class Ledger:
    """Two accounts and a count of transfers between them, in one partition. The accounts sum up to 0.

    `counts` are those that acknowledged transfers have written, `begun` how many were, without those of which
    clients know that they did nothing.
    """

    def __init__(self, tag: int) -> None:
        self.x, self.y, self.count = (b"{ledger-%d}%b" % (tag, each) for each in (b"x", b"y", b"n"))
        self.counts: set[int] = set()
        self.begun = 0

    @property
    def keys(self) -> list[bytes]:
        return [self.x, self.y, self.count]

    def transferred(self, count: int) -> None:
        """Raise Violation when two transfers wrote the same count."""
        if count in self.counts:
            raise Violation(COUNTED, f"two transfers wrote {count}", key=self.count)
        self.counts.add(count)

    def check(self, values: Sequence[int], least: int) -> None:
        """Raise Violation unless these are what one moment can show; `least` was counted before."""
        x, y, count = values
        if x + y:
            raise Violation(WHOLE, f"{x} and {y} do not sum up to 0", key=self.x)
        if count < least:
            raise Violation(COUNTED, f"{count} transfers are counted, {least} were before", key=self.count)
        if count > self.begun:
            raise Violation(
                COUNTED, f"{count} transfers are counted, {self.begun} were begun", key=self.count
            )
