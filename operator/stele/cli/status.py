"""`kubectl stele status`, `members` and `partitions`: reported status and the stored table."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli import output as out
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.output import Output
from stele.cli.row_watch import EverywhereOption, View, WatchOption, check_name, print_rows

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console, Table
    from stele.model import TabletCluster, TabletMember
    from stele.wire.configmap import Head

BAR_LETTERS = 30

ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of a TabletCluster.")]
OptionalCluster = Annotated[
    str | None, typer.Argument(metavar="CLUSTER", help="Name of a TabletCluster; all by default.")
]


@on_cluster
def status(
    where: Where,
    cluster: OptionalCluster = None,
    *,
    everywhere: EverywhereOption = False,
    watch: WatchOption = False,
    output: OutputOption = None,
) -> None:
    """Show the state of clusters: phase, members, partitions and migrations; for one cluster also conditions.

    \b
    Examples:
      kubectl stele status
      kubectl stele status -A -w
      kubectl stele status demo -n stele
      kubectl stele status demo -o json | jq .clusters[0].partitions
    """
    check_name(cluster, everywhere=everywhere)

    async def look(console: "Console") -> "list[TabletCluster]":
        return await console.clusters(cluster, everywhere=everywhere)

    if cluster is not None and not watch and output in (None, Output.WIDE):
        _show_cluster(where.ask(look)[0])
    else:
        view = _clusters_view(wide=output is Output.WIDE)
        print_rows(where, look, view, output, everywhere=everywhere, watch=watch)


def _cluster_facts(cluster: "TabletCluster") -> dict[str, Any]:
    head = {"name": cluster.metadata.name, "namespace": cluster.metadata.namespace}
    desired = {"desired_replicas": cluster.spec.replicas}
    return head | desired | cluster.status.model_dump(mode="json", by_alias=False)


def _clusters_view(wide: bool) -> "View[TabletCluster]":
    headers = ["NAME", "PHASE", "MEMBERS", "PARTITIONS", "SAFE", "UNDER-REPLICATED", "LOST", "MIGRATING"]
    headers += ["MESSAGE"] if wide else []
    return View(
        "clusters", headers, lambda each: _cluster_row(each, wide), _cluster_facts, headers.index("PHASE")
    )


def _cluster_row(each: "TabletCluster", wide: bool) -> list[str]:
    status = each.status
    return [
        each.metadata.name,
        phase_of(each),
        f"{status.members.ready}/{each.spec.members}",
        str(status.partitions.total),
        str(status.partitions.safe),
        str(status.partitions.under_replicated),
        str(status.partitions.lost),
        str(status.migrations.active + status.migrations.waiting),
        *([status.message] if wide else []),
    ]


def phase_of(cluster: "TabletCluster") -> str:
    """Return the phase, or that there is none yet."""
    phase = cluster.status.phase
    if phase is None:
        return "(not reconciled by the operator yet)"
    return phase.value


def _show_cluster(cluster: "TabletCluster") -> None:
    from rich.table import Table

    status = cluster.status
    out.facts(_facts(cluster))
    if status.conditions:
        conditions = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("CONDITION", "STATUS", "REASON", "MESSAGE"):
            conditions.add_column(title, overflow="fold")
        for each in status.conditions:
            conditions.add_row(each.type, each.status.value, each.reason, each.message)
        console = out.console()
        console.print()
        console.print(conditions)


def _facts(cluster: "TabletCluster") -> Iterable[tuple[str, str]]:
    status = cluster.status
    members, partitions, migrations = status.members, status.partitions, status.migrations
    yield "Cluster", f"{cluster.metadata.name} (namespace {cluster.metadata.namespace})"
    yield "Phase", f"{phase_of(cluster)}{': ' if status.message else ''}{status.message}"
    yield "Members", f"{members.ready} of {cluster.spec.members} ready, {members.lite} lite"
    yield (
        "Partitions",
        f"{partitions.total}: {partitions.safe} with {cluster.spec.replicas} copies, "
        f"{partitions.under_replicated} with fewer, {partitions.lost} lost",
    )
    planned = migrations.done + migrations.active + migrations.waiting
    text = f"{migrations.active} active, {migrations.waiting} waiting, {migrations.failed} rolled back"
    yield "Migrations", text
    if migrations.active + migrations.waiting:
        done = BAR_LETTERS * migrations.done // planned
        yield "", f"[{'#' * done}{'.' * (BAR_LETTERS - done)}] {migrations.done} of {planned}"
        yield "Rebalance", status.rebalance
    yield "Engine", cluster.spec.migration.engine.value
    yield "Features", f"format {status.features}"
    yield "Table", f"epoch {status.epoch}, version sum {status.version_sum}, stamp {status.stamp or '-'}"


@on_cluster
def members(
    where: Where,
    cluster: OptionalCluster = None,
    *,
    everywhere: EverywhereOption = False,
    watch: WatchOption = False,
    output: OutputOption = None,
) -> None:
    """List members: state, partitions owned and held, and whether their pods can be evicted.

    \b
    Examples:
      kubectl stele members
      kubectl stele members demo -n stele -o wide
      kubectl stele members demo -n stele -w
    """
    check_name(cluster, everywhere=everywhere)

    async def look(console: "Console") -> "list[TabletMember]":
        return await console.members(cluster, everywhere=everywhere)

    view = _members_view(wide=output is Output.WIDE)
    print_rows(where, look, view, output, everywhere=everywhere, watch=watch)


def _members_view(wide: bool) -> "View[TabletMember]":
    headers = ["NAME", "CLUSTER", "STATE", "OWNED", "BACKUPS", "SIZE", "FREE", "SAFE-TO-EVICT", "NOTE"]
    headers += ["INDEX", "UUID", "ADDRESS", "RESTARTS"] if wide else []
    return View(
        "members", headers, lambda each: _member_row(each, wide), _member_facts, headers.index("STATE")
    )


def _member_facts(member: "TabletMember") -> dict[str, Any]:
    head = {"name": member.metadata.name, "namespace": member.metadata.namespace}
    spec = member.spec.model_dump(mode="json", by_alias=False)
    return head | spec | member.status.model_dump(mode="json", by_alias=False)


def _member_row(member: "TabletMember", wide: bool) -> list[str]:
    spec, status = member.spec, member.status
    notes = [note for note, holds in (("lite", status.lite), ("drain", spec.drain)) if holds]
    row = [
        member.metadata.name,
        spec.cluster,
        status.state.value if status.state else "-",
        str(status.owned),
        str(status.backups),
        out.size(status.bytes),
        status.volume.free or "-",
        "yes" if status.safe_to_evict else "no",
        ",".join(notes) or "-",
    ]
    more = [str(spec.index), status.uuid or "-", status.address or "-", str(status.restarts)]
    return row + more if wide else row


@on_cluster
def partitions(
    where: Where,
    cluster: ClusterArgument,
    *,
    member: Annotated[
        str | None, typer.Option("--member", metavar="NAME", help="Only partitions held by this member.")
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with fewer copies than configured.")
    ] = False,
    output: OutputOption = None,
) -> None:
    """List the rows of a cluster's partition table, with names for member indexes.

    \b
    Examples:
      kubectl stele partitions demo
      kubectl stele partitions demo --member demo-2
      kubectl stele partitions demo --under-replicated -o json
    """

    async def read_table(console: "Console") -> "Table":
        await console.clusters(cluster)
        return await console.table(cluster)

    table = where.ask(read_table)
    head = table.head
    chosen = _index_of(head, member) if member is not None else None
    rows = [
        (number, row)
        for number, row in enumerate(table.rows)
        if (chosen is None or chosen in row.replicas)
        and not (under_replicated and len(row.members) >= head.replicas_of(number))
    ]
    names = {each.index: each.name for each in head.members}
    facts: list[dict[str, Any]] = [
        {"partition": number, "version": row.version, "replicas": [_name(m, names) for m in row.replicas]}
        for number, row in rows
    ]
    groups = [
        {"keyspace": each.keyspace, "first": each.first, "partitions": each.count, "replicas": each.replicas}
        for each in head.groups.groups
    ]
    about = {"cluster": cluster, "epoch": head.epoch, "replicas": head.replicas}
    about |= {"groups": groups} if groups else {}
    if out.data(about | {"partitions": facts}, output):
        return
    columns = ["PARTITION", "VERSION", "OWNER", "BACKUPS", *(["KEYSPACE"] if groups else [])]
    out.table(columns, [[*_cells(each), *_keyspace(head, each["partition"])] for each in facts])


def _cells(fact: dict[str, Any]) -> list[str]:
    return [str(fact["partition"]), str(fact["version"]), *_holders(fact["replicas"])]


def _keyspace(head: "Head", number: int) -> list[str]:
    """Return the cell that names the keyspace of a partition's group; none in a table without groups."""
    if not head.groups.groups:
        return []
    group = head.groups.group_of(number)
    return ["-" if group is None else group.keyspace]


def _index_of(head: "Head", name: str) -> int:
    from stele.errors import BadInput

    for each in head.members:
        if each.name == name:
            return each.index
    listed = ", ".join(each.name for each in head.members) or "none"
    raise BadInput(f'--member is "{name}"; the members of this cluster are: {listed}', "UNKNOWN_MEMBER")


def _name(index: int | None, names: dict[int, str]) -> str | None:
    return None if index is None else names.get(index, f"(member {index})")


def _holders(replicas: object) -> tuple[str, str]:
    assert isinstance(replicas, list)
    names = [name or "-" for name in replicas]
    return (names[0], ",".join(names[1:]) or "-") if names else ("-", "-")
