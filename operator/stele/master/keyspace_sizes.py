"""How many entries and bytes keyspaces have, and when that is worth writing a status."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from stele.core.control.state import State
from stele.core.kv.keyspaces import Catalog, Quota
from stele.core.table.ids import MemberIndex
from stele.master.kstatus import Observed
from stele.model import Keyspace
from stele.model.conditions import ConditionType, Reason, find_condition

SHOWN_SECONDS = 300
"""Seconds after which a status gets the present numbers, however little they differ from those it has."""

MOVED_SECONDS = 10
"""Seconds after which it gets numbers that differ by more than MOVED_RATIO, or passed the quota."""

MOVED_RATIO = 0.1


class Size(NamedTuple):
    """Entries of a keyspace, each counted once, and the bytes of their keys and values."""

    entries: int
    bytes: int


EMPTY = Size(0, 0)


def sizes(state: State, reachable: Collection[MemberIndex]) -> dict[str, Size]:
    """Return the sums of what members own, by keyspace; those that are empty may be missing.

    What a silent member reported last is left out, because another one may own that by now.
    """
    found: dict[str, Size] = {}
    for index in reachable:
        liveness = state.membership.liveness.get(index)
        for each in () if liveness is None or index not in state.table.members else liveness.keyspaces:
            before = found.get(each.keyspace, EMPTY)
            found[each.keyspace] = Size(before.entries + each.entries, before.bytes + each.bytes)
    return found


def over_quota(catalog: Catalog, found: Mapping[str, Size]) -> tuple[str, ...]:
    """Return the keyspaces that may not grow."""
    declared = catalog.keyspaces.items()
    return tuple(name for name, each in declared if _reached(each.quota, found.get(name, EMPTY)))


def quota_conditions(model: Keyspace, size: Size) -> list[Observed]:
    """Return the condition that tells of a keyspace of the size that its status shows; none without a quota,
    unless it had one before."""
    quota, type_ = model.settings.quota, ConditionType.QUOTA_REACHED
    if quota is None:
        before = find_condition(model.status.conditions, type_)
        return [] if before is None else [(type_, False, Reason.NO_QUOTA, "it has no quota")]
    if quota.reached(*size):
        text = "writes that make it larger are refused: delete entries, or raise spec.quota"
        return [(type_, True, Reason.AT_QUOTA, text)]
    return [(type_, False, Reason.BELOW_QUOTA, "it may grow")]


def _reached(quota: Quota | None, size: Size) -> bool:
    return quota is not None and quota.reached(*size)


class ShownSizes:
    """What statuses show of sizes. With 1,000 keyspaces that change all the time, four of them are written in
    a second, if none of them grows by a tenth in that time."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[Size, datetime]] = {}

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other objects."""
        self._shown = {uid: shown for uid, shown in self._shown.items() if uid in uids}

    def of(self, uid: str, stored: Size, size: Size, quota: Quota | None, now: datetime) -> Size:
        """Return the size to show of an object whose status has `stored`: that one, or the present one."""
        shown, since = self._shown.setdefault(uid, (stored, now))
        seconds = (now - since).total_seconds()
        moved = _moved(shown, size) or _reached(quota, shown) != _reached(quota, size)
        if size == shown or seconds < (MOVED_SECONDS if moved else SHOWN_SECONDS):
            return shown
        self._shown[uid] = size, now
        return size


def _moved(shown: Size, size: Size) -> bool:
    return any(abs(now - before) > MOVED_RATIO * before for before, now in zip(shown, size, strict=True))
