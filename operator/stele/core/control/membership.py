"""Members, their liveness, and which of them leave, as known to one leadership."""

from collections.abc import Collection, Iterable, Mapping

from stele.core.control.commands import TabletReport
from stele.core.control.failure_detector import MemberLiveness, MemberObject
from stele.core.table.ids import VERSION_MAX, MemberIndex, PartitionId, Version
from stele.core.table.table import Partition
from stele.core.tablet.lifecycle import TabletState


class Membership:
    """Written by its own methods only, and each `MemberLiveness` by its own.

    `leaving` members give up their data, and others take the place of those that are `replaced`; `next_index`
    is above every index ever used; `list_version` is that of the stored member list; a take-over waits for
    the `unlisted`.
    """

    def __init__(self, list_version: int, next_index: MemberIndex) -> None:
        self.liveness: dict[MemberIndex, MemberLiveness] = {}
        self.leaving: frozenset[MemberIndex] = frozenset()
        self.replaced: frozenset[MemberIndex] = frozenset()
        self.unlisted: frozenset[MemberIndex] = frozenset()
        self.list_version, self.next_index = list_version, next_index

    def tablet(self, member: MemberIndex | None, number: PartitionId) -> TabletReport | None:
        """Return the last report of a member's tablet, even of a tombstone; None when there is none."""
        liveness = None if member is None else self.liveness.get(member)
        return None if liveness is None else liveness.tablets.get(number)

    def has_copy(self, member: MemberIndex | None, number: PartitionId) -> bool:
        """Return whether the member last reported a READY tablet of the partition."""
        tablet = self.tablet(member, number)
        return tablet is not None and tablet.state == TabletState.READY

    def has_shown_copy(self, member: MemberIndex, number: PartitionId, since: float) -> bool:
        """Return whether the member showed its copy in reply to a request sent after `since`.

        An older reply may come from a member that has since lost its volume, or failed unnoticed.
        """
        return self.has_copy(member, number) and self.liveness[member].answered_seconds > since

    def promised(self, member: MemberIndex, number: PartitionId) -> Version:
        """Return the lowest term that the member's tablet accepts; 0 when that is unknown."""
        tablet = self.tablet(member, number)
        # The maximum stands for promises that were lost with their file: no row could ever exceed it.
        return 0 if tablet is None or tablet.promised >= VERSION_MAX else tablet.promised

    def observe(self, objects: Iterable[MemberObject], listed: Collection[MemberIndex], now: float) -> None:
        """Apply what Kubernetes shows of members; one that is neither shown nor listed is forgotten."""
        shown = {each.index: each for each in objects}
        for index in shown.keys() | set(listed):
            if index not in self.liveness:
                self.liveness[index] = MemberLiveness(index, now)
            self.liveness[index].observe_pod(shown.get(index), now)
        for index in self.liveness.keys() - shown.keys() - set(listed):
            del self.liveness[index]

    def forgive_silence(self, now: float) -> None:
        """Ignore silence until now, because no member was asked for a while."""
        for liveness in self.liveness.values():
            liveness.forgive_silence(now)

    def note_rows(
        self, before: tuple[Partition, ...], rows: Mapping[PartitionId, Partition], change: int
    ) -> None:
        """Compare the tablets of these rows' members again, which this change of the table has stored, and
        note who is in one no more."""
        for number, row in rows.items():
            for member in before[number].members | row.members:
                if (liveness := self.liveness.get(member)) is not None:
                    liveness.note_row(number, change, named=member in row.members)

    def set_leaving(self, leaving: frozenset[MemberIndex]) -> None:
        self.leaving = leaving

    def set_replaced(self, replaced: frozenset[MemberIndex]) -> frozenset[MemberIndex]:
        """Note which members are replaced. Returns those that were not before."""
        before, self.replaced = self.replaced, replaced
        return replaced - before

    def use_indexes(self, used: Iterable[MemberIndex]) -> None:
        """Never assign these indexes again."""
        self.next_index = max([self.next_index, *(index + 1 for index in used)])

    def await_unlisted(self, unlisted: frozenset[MemberIndex]) -> bool:
        """Wait for these members. Returns whether some are new."""
        before, self.unlisted = self.unlisted, unlisted
        return bool(unlisted - before)

    def note_list_stored(self) -> None:
        self.list_version += 1

    def raise_list_version(self, reported: Iterable[int]) -> None:
        """Raise the version above every member's list.

        A newer list at a member means that an older copy of the ConfigMaps was restored, and members accept
        only newer lists.
        """
        newest = max(reported, default=0)
        if newest > self.list_version:
            self.list_version = newest + 1
