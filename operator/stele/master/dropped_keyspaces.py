"""Deletes the entries of Keyspaces that are deleted with `onDelete: Drop`, before their finalizer goes.

One member clears all partitions. Clears that it has sent may arrive late, so each names the version of the
catalog for which it was wanted, and owners with a later one refuse it. The finalizer goes when all members
have a later one: what is written from then on stays.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping

from stele.core.control.commands import ClearKeyspaces
from stele.core.table.ids import MemberIndex


class DroppedKeyspaces:
    """The steps for the keyspaces that are being dropped; a new master begins again.

    `bump` stores the catalog with its next version, and returns this version.
    """

    def __init__(self, bump: Callable[[], Awaitable[int]]) -> None:
        self._bump = bump
        self._clear: ClearKeyspaces | None = None
        self._clearer: MemberIndex | None = None
        self._fence = 0

    def clear_at(self, index: MemberIndex) -> ClearKeyspaces | None:
        """Return the keyspaces that this member has to clear, None for nothing."""
        return self._clear if index == self._clearer else None

    async def advance(
        self,
        names: Collection[str],
        version: int,
        reported: Mapping[MemberIndex, tuple[int, int]],
        reachable: Collection[MemberIndex],
    ) -> bool:
        """Take the next step, and return whether the entries of all of `names` are gone for good.

        `version` is that of the stored catalog, which has none of the names. `reported` has, by member, the
        version that it uses and the one for which it has cleared.
        """
        wanted = tuple(sorted(names))
        if not wanted:
            self._clear = self._clearer = None
        elif self._clear is None or self._clear.keyspaces != wanted:
            # The new version stands for these names alone: who reports it as cleared has cleared them.
            self._clear, self._fence = ClearKeyspaces(await self._bump(), wanted), 0
        elif self._fence:
            return all(used >= self._fence for used, _ in reported.values())
        elif any(cleared == self._clear.catalog for _, cleared in reported.values()):
            self._fence = await self._bump()
        elif version != self._clear.catalog:
            self._clear = ClearKeyspaces(version, wanted)
        self._clearer = None if self._fence else self._first(reported, reachable)
        return False

    def _first(
        self, reported: Mapping[MemberIndex, tuple[int, int]], reachable: Collection[MemberIndex]
    ) -> MemberIndex | None:
        """Return the member that clears: the first that answers and has the catalog."""
        if self._clear is None:
            return None
        ready = (index for index, (used, _) in reported.items() if used >= self._clear.catalog)
        return min((index for index in ready if index in reachable), default=None)
