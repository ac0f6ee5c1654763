"""`kubectl stele state`: changes the cluster state, and says what the change waits for."""

from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli.options import Where, on_cluster
from stele.cli.waiting import Progress, follow
from stele.core.control.commands import ClusterState

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletCluster


@on_cluster
def state(
    where: Where,
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of a TabletCluster.")],
    wanted: Annotated[
        ClusterState,
        typer.Argument(metavar="STATE", case_sensitive=False, help="Active, NoMigration, Frozen or Passive."),
    ],
    *,
    rollback_copies: Annotated[
        bool, typer.Option("--rollback-copies", help="End copies that are under way instead of waiting.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is in force, for 600 s at most.")
    ] = False,
) -> None:
    """Change what a cluster allows: members that join, data that moves, writes.

    The state is in force once copies under way have ended and every live member has agreed. With
    --rollback-copies they are undone, and made again once migrations are allowed; those whose destination
    was already asked to take over are completed in any case.

    \b
    Examples:
      kubectl stele state demo Passive --wait -n stele
      kubectl stele state demo Frozen --rollback-copies -n stele
      kubectl stele state demo Active -n stele
    """
    print(where.ask(lambda console: _change(console, cluster, wanted, rollback_copies=rollback_copies)))
    if wait:
        undone = f"{wanted.value} is not in force"
        print(where.ask(lambda console: follow(lambda: _progress(console, cluster, wanted), undone)))


async def _change(console: "Console", name: str, wanted: ClusterState, *, rollback_copies: bool) -> str:
    from stele.model.cluster import ROLLBACK_COPIES

    before = await console.cluster(name)
    noted = wanted.value if rollback_copies else None
    if before.metadata.annotations.get(ROLLBACK_COPIES) != noted:
        await console.annotate_cluster(name, {ROLLBACK_COPIES: noted})
    if before.spec.state is not wanted:
        await console.change_cluster(name, {"state": wanted.value})
    elif before.status.state is wanted:
        return f"{name} is {wanted.value} already"
    return f"{name} is to be {wanted.value}; {_in_force(before)}"


def _in_force(cluster: "TabletCluster") -> str:
    """Return which state is in force, and what a change waits for."""
    from stele.model.conditions import ConditionType, Reason, find_condition

    in_force = cluster.status.state
    text = f"{'no state' if in_force is None else in_force.value} is in force"
    paused = find_condition(cluster.status.conditions, ConditionType.PAUSED)
    waits = (
        paused is not None and paused.reason == Reason.CLUSTER_STATE and cluster.spec.state is not in_force
    )
    return f"{text}: {paused.message}" if waits and paused is not None else text


async def _progress(console: "Console", name: str, wanted: ClusterState) -> Progress:
    cluster = await console.cluster(name)
    if cluster.status.state is wanted:
        return Progress(f"{wanted.value} is in force", done=True)
    return Progress(_in_force(cluster))
