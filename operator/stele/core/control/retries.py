"""When a partition is planned again after its migration failed (docs/internals/operator.md, "What fails").

Each partition has a pause of its own, twice as long each time that it fails in a row: one that fails for ever
holds up no other. Pauses end on a grid, so that those that fail at about the same time share a plan.
"""

from dataclasses import dataclass, field
from math import floor

from stele.core.table.ids import PartitionId

RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 30.0
"""A pause is at most so long, and at least half as long: after the first failure, and after many."""


@dataclass(slots=True)
class Retries:
    """`failed` counts failures in a row; `pauses` has ends of pauses, until a plan was made after them."""

    failed: dict[PartitionId, int] = field(default_factory=dict)
    pauses: dict[PartitionId, float] = field(default_factory=dict)

    def note_failed(self, partition: PartitionId, now: float) -> None:
        """It is planned again after a pause."""
        before = self.failed.get(partition, 0)
        self.failed[partition] = before + 1
        pause = min(RETRY_SECONDS_MAX, RETRY_SECONDS * 2.0 ** min(before, 10))
        grid = pause / 2
        self.pauses[partition] = floor((now + pause) / grid) * grid

    def note_void(self, partition: PartitionId, now: float) -> None:
        """What was planned for it failed by no fault of its own: it is planned again at once."""
        self.pauses[partition] = now

    def note_done(self, partition: PartitionId) -> None:
        """A migration of it was made."""
        self.failed.pop(partition, None)
        self.pauses.pop(partition, None)

    def paused(self, now: float) -> set[PartitionId]:
        """Partitions whose pause lasts."""
        return {partition for partition, end in self.pauses.items() if end > now}

    def due(self, now: float) -> set[PartitionId]:
        """Partitions whose pause is over, and that were not planned since."""
        return {partition for partition, end in self.pauses.items() if end <= now}

    def note_planned(self, but: set[PartitionId]) -> None:
        """A plan was made for all but these."""
        self.pauses = {partition: self.pauses[partition] for partition in but}
