"""When a partition is planned again after its migration failed (docs/internals/operator.md, "What fails").

Each partition has its own pause, doubled with each consecutive failure, so that one that always fails does
not delay others. Pauses end on a grid, so that failures at about the same time share a plan.

A copy that failed COPIES_FAILED_MAX times is tried smaller, with ever fewer others at the same time, and
pauses at least as long as the attempt took, so that it costs others at most half of the bandwidth.
"""

from dataclasses import dataclass, field
from math import floor

from stele.core.table.ids import PartitionId

RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 30.0
"""Maximum length of a pause after the first failure and after many; the minimum is half of it."""

COPIES_FAILED_MAX = 3
"""Failed copies of a partition after which, and after each as many more, half as many are copied with it."""

COPY_PAUSE_SECONDS_MAX = 300.0
"""Maximum length of the pause after a copy that took long."""


@dataclass(slots=True)
class Retries:
    """`failed` counts consecutive failures; `pauses` has their ends, until the next plan after them.

    `copies_failed` counts copies that failed since the last that did not.
    """

    failed: dict[PartitionId, int] = field(default_factory=dict)
    pauses: dict[PartitionId, float] = field(default_factory=dict)
    copies_failed: dict[PartitionId, int] = field(default_factory=dict)

    def note_failed(self, partition: PartitionId, now: float, *, copies: int = 0, took: float = 0.0) -> None:
        """Note a failure: the partition is planned again after a pause.

        `copies` of it failed in the attempt, which took that many seconds.
        """
        before = self.failed.get(partition, 0)
        self.failed[partition] = before + 1
        pause = min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2.0 ** min(before, 10))
        if copies:
            self.copies_failed[partition] = self.copies_failed.get(partition, 0) + copies
        if self.tried_smaller(partition):
            pause = max(pause, min(took, COPY_PAUSE_SECONDS_MAX))
        grid = pause / 2
        self.pauses[partition] = floor((now + pause) / grid) * grid

    def tried_smaller(self, partition: PartitionId) -> bool:
        return self.copies_failed.get(partition, 0) >= COPIES_FAILED_MAX

    def parallel_max(self, partition: PartitionId, parallel: int) -> int:
        """Return with how many tablets at once, at most, this one is copied to a member."""
        halved = self.copies_failed.get(partition, 0) // COPIES_FAILED_MAX
        return max(1, parallel >> min(halved, 30))

    def note_void(self, partition: PartitionId, now: float) -> None:
        """Note a failure that was not its own fault: the partition is planned again at once."""
        self.pauses[partition] = now

    def note_done(self, partition: PartitionId) -> None:
        """Note a successful migration."""
        self.failed.pop(partition, None)
        self.pauses.pop(partition, None)
        self.copies_failed.pop(partition, None)

    def paused(self, now: float) -> set[PartitionId]:
        """Return partitions whose pause has not ended."""
        return {partition for partition, end in self.pauses.items() if end > now}

    def due(self, now: float) -> set[PartitionId]:
        """Return partitions whose pause has ended and that have not been planned since."""
        return {partition for partition, end in self.pauses.items() if end <= now}

    def note_planned(self, but: set[PartitionId]) -> None:
        """Note a plan for all partitions but these."""
        self.pauses = {partition: self.pauses[partition] for partition in but}
