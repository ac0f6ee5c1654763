"""Evens out owners by exchanging them with backups of their rows, which copies nothing.

The members are a graph: a row leads from its owner to each backup that may take over. What one member owns
too much is passed along a shortest path to one that may own more; as long as there is a path, rows allow it.
"""

from collections.abc import Callable, Iterable, Iterator

from stele.core.placement.draft import DraftAssignment, RowGroup
from stele.core.placement.quotas import QuotaBounds
from stele.core.table.ids import MemberIndex

VISITS_MAX = 200_000
"""Groups of rows that are visited in search of paths before an imbalance is accepted."""

Path = list[tuple[RowGroup, int]]
"""Rows, and the index of the backup that becomes the owner of each, from the last to the first."""


def even_owners(draft: DraftAssignment, bounds: QuotaBounds) -> None:
    """Bring what each member of `bounds` owns within them, as far as rows allow; other members keep theirs.

    Bounds are the share rounded down and up, so with equal weights owners differ by at most 1.
    """
    _Search(draft, bounds).run()


class _Search:
    def __init__(self, draft: DraftAssignment, bounds: QuotaBounds) -> None:
        self._draft, self._bounds = draft, bounds
        self._visits_left = VISITS_MAX

    def run(self) -> None:
        low = {member: down for member, (down, _) in self._bounds.items()}
        high = {member: up for member, (_, up) in self._bounds.items()}
        for limits in ((high, low), (high, high), (low, low)):
            self._pass_on(*limits)

    def _pass_on(self, most: dict[MemberIndex, int], least: dict[MemberIndex, int]) -> None:
        """Pass rows from members that own more than `most` to those that own less than `least`."""
        owned = self._draft.owned
        while sources := [member for member in most if owned[member] > most[member]]:
            if not any(owned[member] < least[member] for member in least):
                return
            path = self._path(sources, lambda member: owned[member] < least[member])
            if path is None:
                return
            giver, taker = path[-1][0].row[0], path[0][0].row[path[0][1]]
            assert giver is not None
            assert taker is not None
            number = min(owned[giver] - most[giver], least[taker] - owned[taker])
            number = min(number, *(len(group.partitions) for group, _ in path))
            for group, index in path:
                self._draft.swap_owner(group, index, number)

    def _path(self, sources: Iterable[MemberIndex], wanted: Callable[[MemberIndex], bool]) -> Path | None:
        """Return a shortest path from one of the members to one that is wanted."""
        reached: dict[MemberIndex, tuple[RowGroup, int] | None] = dict.fromkeys(sources)
        for member in (queue := list(reached)):
            for group, index in self._exchanges(member):
                backup = group.row[index]
                if backup is None or backup in reached:
                    continue
                reached[backup] = group, index
                if wanted(backup):
                    return self._trace(reached, backup)
                queue.append(backup)
        return None

    def _exchanges(self, owner: MemberIndex) -> Iterator[tuple[RowGroup, int]]:
        for group in self._draft.groups_of(owner, True):
            self._visits_left -= 1
            if self._visits_left < 0:
                return
            for index in range(1, len(group.row)):
                if group.row[index] in self._bounds and self._draft.swaps(group, index):
                    yield group, index

    @staticmethod
    def _trace(reached: dict[MemberIndex, tuple[RowGroup, int] | None], member: MemberIndex) -> Path:
        path: Path = []
        at: MemberIndex | None = member
        while at is not None and (step := reached[at]) is not None:
            path.append(step)
            at = step[0].row[0]
        return path
