"""What holds while a state of the cluster is in force: the table stays, and Passive takes no writes.

It is not the same byte for byte: in NoMigration a member that is lost leaves its rows, and its backup becomes
the owner (docs/reference/resources.md, "Cluster states"); addresses change, and versions grow when nothing
else does.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from stele.core.table.table import Partition
from stele.wire.configmap import Head

if TYPE_CHECKING:
    from tests.simulation.history import Operation
    from tests.simulation.world import World

STATES_WITHOUT_MIGRATION = ("NoMigration", "Frozen", "Passive")
STATES_WITHOUT_JOINING = ("Frozen", "Passive")

Check = Callable[..., None]
MayBeLost = Callable[[int, int, int], bool]
IsWhole = Callable[[int, int], bool]

SETTLED_SECONDS = 10.0
"""A promotion that began before a state was in force ends within this time."""


class States:
    """`check` counts and complains; `may_be_lost` judges (member, partition, epoch), `is_whole` whether
    the copy of (member, partition) is on its volume.
    """

    def __init__(self, world: "World", check: Check, may_be_lost: MayBeLost, is_whole: IsWhole) -> None:
        self.world, self._check, self._may_be_lost, self._is_whole = world, check, may_be_lost, is_whole
        self.state, self._since = "Active", 0.0
        self._members: dict[str, tuple[int, str, bool]] = {}
        self._passive_since: float | None = None
        self._written: list[Operation] = []
        world.keys.histories.answered = self._acknowledged

    # -- the table

    def row(self, number: int, before: Partition, row: Partition, epoch: int) -> None:
        """A state in force brings nobody new in, and lets nobody go and no owner change but the lost."""
        if not before.version or self.state not in STATES_WITHOUT_MIGRATION:
            return
        new = row.members - before.members
        shown = (row, before, self.state)
        text = "{} follows {} while the state is {}"
        self._check("no move in a state without", not new, text, *shown, partition=number)
        other_owner = {before.owner} - {row.owner, None}
        changed = (before.members - row.members) | other_owner
        needless = {each for each in changed if not self._may_be_lost(each, number, epoch)}
        text += ", and nothing was wrong with {}"
        rule = "rows stay as they are in a state without"
        self._check(rule, not needless, text, *shown, needless, partition=number)
        if self.state in STATES_WITHOUT_JOINING and self.world.clock.now - self._since > SETTLED_SECONDS:
            left = {each for each in before.members - row.members if self._is_whole(each, number)}
            rule, text = "rows keep silent members in a state without joining", "{} follows {} while {}: {}"
            self._check(rule, not left, text, *shown, left, partition=number)

    def head(self, head: Head, rows: tuple[Partition, ...]) -> None:
        """A member joins only when it may; one that a row names neither leaves nor becomes another."""
        members = {each.uuid: (each.index, each.name, each.lite) for each in head.members}
        frozen = {head.state, self.state} <= set(STATES_WITHOUT_JOINING)
        joins = bool(members.keys() - self._members.keys()) and frozen
        shown = "{} while {}", members, head.state
        self._check("no member joins in a state without", not joins, *shown)
        named = frozenset[int]().union(*(row.members for row in rows))
        lost = [
            each for uuid, each in self._members.items() if each[0] in named and members.get(uuid) != each
        ]
        text = "{} of the rows are not as before among {}"
        self._check("members of rows stay", not lost, text, lost, list(members.values()))
        if head.state != self.state:
            self._since = self.world.clock.now
        self._members, self.state = members, head.state

    def forget_members(self) -> None:
        """No head is stored any more."""
        self._members = {}

    # -- writes

    def _acknowledged(self, operation: "Operation") -> None:
        did_nothing = operation.kind == "get" or operation.reply in (None, 0)
        if self.state == "Passive" and not did_nothing:
            self._written.append(operation)

    def look(self) -> None:
        """A write that began when all members knew that the cluster is passive was refused."""
        written, self._written = self._written, []
        nodes = [each.node for each in self.world.kubelet.running()]
        states = {None if node is None else node.table.state for node in nodes} | {self.state}
        if states != {"Passive"}:
            self._passive_since = None
        elif self._passive_since is None:
            self._passive_since = self.world.clock.now
        else:
            late = [each for each in written if each.begin > self._passive_since]
            text = "{} was done, all members are passive since {:.3f}"
            self._check("no write while all are passive", not late, text, late[:1], self._passive_since)
