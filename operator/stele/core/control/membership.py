"""Who is a member, who answers, and who is to go, as one leadership knows it."""

from collections.abc import Collection, Iterable, Mapping

from stele.core.control.failure_detector import MemberLiveness, MemberObject
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition


class Membership:
    """Written by its own methods only, and each `MemberLiveness` by its own.

    `leaving` are to give up their data; `next_index` is above each that was ever used; `list_version` is that
    of the member list as it is stored; a take-over waits for the `unlisted`.
    """

    def __init__(self, list_version: int, next_index: MemberIndex) -> None:
        self.liveness: dict[MemberIndex, MemberLiveness] = {}
        self.leaving: frozenset[MemberIndex] = frozenset()
        self.unlisted: frozenset[MemberIndex] = frozenset()
        self.list_version, self.next_index = list_version, next_index

    def observe(self, objects: Iterable[MemberObject], listed: Collection[MemberIndex], now: float) -> None:
        """Take in what Kubernetes shows of members; one that is neither shown nor listed is forgotten."""
        shown = {each.index: each for each in objects}
        for index in shown.keys() | set(listed):
            if index not in self.liveness:
                self.liveness[index] = MemberLiveness(index, now)
            self.liveness[index].observe_pod(shown.get(index), now)
        for index in self.liveness.keys() - shown.keys() - set(listed):
            del self.liveness[index]

    def forgive_silence(self, now: float) -> None:
        """Nobody was asked for a while: silence counts from now on only."""
        for liveness in self.liveness.values():
            liveness.forgive_silence(now)

    def note_rows(self, before: tuple[Partition, ...], rows: Mapping[PartitionId, Partition]) -> None:
        """These rows are stored: the tablets of their members are compared with them again."""
        for number, row in rows.items():
            for member in before[number].members | row.members:
                if member in self.liveness:
                    self.liveness[member].recheck.add(number)

    def let_go(self, leaving: frozenset[MemberIndex]) -> None:
        self.leaving = leaving

    def use_indexes(self, used: Iterable[MemberIndex]) -> None:
        """No later member gets one of these."""
        self.next_index = max([self.next_index, *(index + 1 for index in used)])

    def await_unlisted(self, unlisted: frozenset[MemberIndex]) -> bool:
        """Wait for these; whether there are new ones."""
        before, self.unlisted = self.unlisted, unlisted
        return bool(unlisted - before)

    def note_list_stored(self) -> None:
        self.list_version += 1

    def raise_list_version(self, reported: Iterable[int]) -> None:
        """Above every list that a member has: an older copy of the ConfigMaps was restored when one is newer,
        and members take newer lists only.
        """
        newest = max(reported, default=0)
        if newest > self.list_version:
            self.list_version = newest + 1
