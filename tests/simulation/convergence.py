"""When everything is well again: what is still missing, in a sentence; empty when nothing is."""

from stele.adapters.kubernetes.api import MEMBERS
from stele.core.control.rebalance.data_members import data_members
from stele.core.formats import SPOKEN
from stele.core.placement.plan import plan
from stele.core.tablet.lifecycle import state_name
from stele.member.node import Node
from stele.member.serving.participant import originators
from stele.wire.storage.keys import TABLET_PREFIX_BYTES, split_user, tablet_range
from tests.simulation.history import Violation
from tests.simulation.keyspaces import undeclared
from tests.simulation.profile import CLUSTER
from tests.simulation.rebalances import unended as unended_plans
from tests.simulation.updates import not_updated
from tests.simulation.world import World

TRANSACTIONS_END = "nothing is left of transactions"
COPIES_EQUAL = "copies equal at rest"
COUNTS_RIGHT = "counts are those of the entries"
ENTRIES_MAX = 100_000
Content = tuple[tuple[int, int], dict[bytes, tuple[int, int]], list[tuple[bytes, bytes]]]
"""The last operation applied, counts by keyspace, all that is stored."""
AT_REST = {"ReplicationSatisfied": "True", "Balanced": "True", "Available": "True", "DataLoss": "False"}
"""What the conditions say when nothing is to be done, whether all members are there or not."""


def unfinished(world: World) -> str:
    """Why the cluster is not yet safe, balanced and at rest."""
    master = world.master
    state = None if master is None else master.state
    if state is None or not state.recovered:
        return "no master leads"
    if (
        state.operations.migrations
        or state.operations.promotions
        or state.operations.sessions
        or len(state.rebalance.queues)
        or state.table.staged
    ):
        under_way = [*state.operations.migrations.values(), *state.operations.promotions.values()]
        return f"under way: {under_way[:1]}"
    features = state.operations.change.features
    if features < SPOKEN.most and not world.missed():
        return f"features {features} are in force, all members speak {SPOKEN}"
    wanted = world.cluster["spec"]["members"]
    missed, there = world.missed(), len(world.present())
    if len(state.table.members) != wanted or there != wanted - bool(missed):
        gone = f", {missed} stays away" if missed else ""
        return f"{len(state.table.members)} members, {there} run, {wanted} are desired{gone}"
    return _rows(world) or _members(world) or unended_plans(world) or undeclared(world) or _status(world)


def _rows(world: World) -> str:
    master = world.master
    assert master is not None
    assert master.state is not None
    table, replicas = world.table(), world.cluster["spec"]["replicas"]
    missed = world.missed()
    present = {index for index, member in table.members.items() if member.name != missed}
    for number, row in enumerate(table.partitions):
        full = min(table.replicas_of(number, replicas), len(present))
        if len(row.members & present) != full or len(row.replicas) != full:
            return f"partition {number}: {row}, {full} copies are desired"
    assert master.cluster is not None
    desired = master.cluster._objects.desired()
    members = data_members(master.state, desired, master.loop.time())
    left = plan(table, members, replicas).migrations
    return f"not balanced: {left[:2]}" if left else ""


def _members(world: World) -> str:
    master = world.master
    assert master is not None
    assert master.state is not None
    for machine in world.present():
        node = machine.node
        if node is None:
            return f"{machine.place} starts"
        if node.table.stamp != master.state.table.stamp.value:
            return f"{machine.place} has another table"
        if node.roles.unserved():
            return f"{machine.place} does not serve {node.roles.unserved()}"
        if node.tablets.writer.stalled:
            return f"{machine.place}: its log takes nothing: {node.tablets.writer.stalled}"
        if found := _left_over(node):
            return f"{machine.place}: {found}"
    return ""


def _left_over(node: Node) -> str:
    """What ended migrations and lost rows leave behind at a member."""
    for number, replica in node.replicas.items():
        meta, owner = replica.meta, replica.owner
        if replica.broken and node.me in node.rows[number].members:
            return f"partition {number} is offline: {replica.broken}"
        if replica.ready != (node.me in node.rows[number].members):
            return f"partition {number} is {state_name(replica.state)}, its row is {node.rows[number]}"
        version = node.rows[number].version
        held = [each for each in (meta.waited, meta.frozen) if each is not None and each.base >= version]
        copying = meta.copy is not None and meta.copy.base >= version
        if copying or held or (meta.accepted is not None and meta.accepted.version > version):
            return f"partition {number}: {meta}"
        if owner is not None and (owner.learner is not None or owner.frozen):
            return f"partition {number}: {owner.learner} {owner.frozen!r}"
    return ""


def _status(world: World) -> str:
    """All is well, and said to be: or it is said that a member is missing, and nothing else."""
    status, missed = world.cluster.get("status") or {}, world.missed()
    conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
    wanted = {"Ready": "False", "Degraded": "True"} if missed else {"Ready": "True", "Degraded": "False"}
    wanted |= AT_REST
    wrong = {name: conditions.get(name) for name in wanted if conditions.get(name) != wanted[name]}
    if wrong or status.get("phase") != ("Degraded" if missed else "Running"):
        return f"the status says {status.get('phase')}: {status.get('message')}; {wrong}"
    if not missed:
        return not_updated(world)
    stored = world.api.find(MEMBERS, missed)
    said = None if stored is None else (stored.get("status") or {}).get("state")
    return "" if said == "Unreachable" else f"{missed} is said to be {said}"


def unended(world: World) -> str:
    """What is left of transactions across partitions: locks, or outcomes of members that are there."""
    nodes, known = _nodes(world), {member.uuid for member in world.table().members.values()}
    for number, row in enumerate(world.rows()):
        for index in row.members & nodes.keys():
            replica, text = nodes[index].replicas[number], f"partition {number} of member {index}"
            if replica.intents or replica.locks is not None:
                return f"{text} has {replica.intents} intents, and locks: {replica.locks is not None}"
            left = [id for id in originators(nodes[index].engine, replica) if id.member in known]
            if left:
                return f"{text} has outcomes, the first of each member: {left}"
    return ""


def _nodes(world: World) -> dict[int, Node]:
    """The members that run, by their numbers."""
    return {
        int(machine.place.removeprefix(f"{CLUSTER}-")): machine.node
        for machine in world.kubelet.running()
        if machine.node is not None
    }


def check_equal(world: World) -> None:
    """With nobody writing, all copies of a partition come to the same operation and hold the same."""
    nodes = _nodes(world)
    for number, row in enumerate(world.rows()):
        world.trace.checked[COPIES_EQUAL] += 1
        found = {index: _content(nodes[index], number) for index in row.members}
        if len({repr(each) for each in found.values()}) > 1:
            raise Violation(COPIES_EQUAL, f"copies differ: {found}", partition=number)
        _check_counts(world, number, found)


def _check_counts(world: World, number: int, contents: dict[int, Content]) -> None:
    """What DBSIZE and sizes are told from: copies that are equal may all have counted wrong."""
    for index, (_, keyspaces, entries) in contents.items():
        world.trace.checked[COUNTS_RIGHT] += 1
        counted, stored = sum(count for count, _ in keyspaces.values()), sum(map(_is_entry, entries))
        if counted != stored:
            text = f"member {index} counted {counted} entries and has {stored}"
            raise Violation(COUNTS_RIGHT, text, partition=number)


def _is_entry(stored: tuple[bytes, bytes]) -> bool:
    return split_user(bytes(TABLET_PREFIX_BYTES) + stored[0]) is not None


def _content(node: Node, number: int) -> Content:
    """All that the tablet holds, of clients and of the product itself."""
    replica = node.replicas[number]
    begin, end = tablet_range(number, replica.generation)
    entries = node.engine.scan(begin, end, ENTRIES_MAX)
    assert len(entries) < ENTRIES_MAX
    stripped = [(key[TABLET_PREFIX_BYTES:], value) for key, value in entries]
    return replica.tablet.log.applied, replica.keyspaces, stripped
