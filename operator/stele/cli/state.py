"""`kubectl stele state`: changes the cluster state, and says what the change waits for."""

from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli.options import POLL_SECONDS, Where, on_cluster
from stele.core.control.commands import ClusterState
from stele.errors import Unavailable

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletCluster

WAIT_SECONDS_MAX = 600.0
"""Seconds that --wait waits until a state is in force."""


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
        print(where.ask(lambda console: _wait(console, cluster, wanted)))


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


async def _wait(console: "Console", name: str, wanted: ClusterState) -> str:
    """Print what it waits for until it is in force. Raises Unavailable after the limit."""
    import asyncio
    import time

    end, shown = time.monotonic() + WAIT_SECONDS_MAX, ""
    while time.monotonic() < end:
        cluster = await console.cluster(name)
        if cluster.status.state is wanted:
            return f"{wanted.value} is in force"
        if (line := _in_force(cluster)) != shown:
            print(line)
        shown = line
        await asyncio.sleep(POLL_SECONDS)
    raise Unavailable(f"{wanted.value} is not in force after {WAIT_SECONDS_MAX:g} s: {shown}")
