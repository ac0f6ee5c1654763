"""`kubectl stele approve`, `cancel`, `move` and `drain`: commands that change the specs of objects."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli.options import Where, on_cluster
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput, Refused

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.model import TabletMember

FINAL = frozenset({"Done", "Failed", "Superseded"})

PlanArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a TabletRebalance.")]


@on_cluster
def approve(where: Where, name: PlanArgument) -> None:
    """Approve a Proposed plan, so that it starts.

    \b
    Example:
      kubectl stele approve demo-4-1 -n stele
    """
    where.ask(lambda console: _approve(console, name))
    print(f"{name} is approved")


async def _approve(console: "Console", name: str) -> None:
    plan = await console.rebalance(name)
    if plan.spec.mode.value == "DryRun":
        raise BadInput(
            f"{name} is a preview (spec.mode DryRun), which never runs: there is nothing to approve"
        )
    if plan.status.phase in FINAL:
        raise BadInput(
            f"{name} is {plan.status.phase}: approve the plan that replaced it, see kubectl get str"
        )
    await console.change_rebalance(name, {"approved": True})


@on_cluster
def cancel(
    where: Where,
    name: PlanArgument,
    *,
    roll_back: Annotated[
        bool, typer.Option("--roll-back", help="Also undo running migrations, where that is still possible.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p",
            "--partition",
            min=0,
            max=PARTITIONS_MAX - 1,
            help="Cancel this partition only; may be repeated.",
        ),
    ] = None,
) -> None:
    """Cancel the rest of a plan, or single partitions of it.

    Running migrations are completed, unless --roll-back is given; those of single partitions are rolled back
    in any case.

    \b
    Examples:
      kubectl stele cancel demo-4-1 -n stele
      kubectl stele cancel demo-4-1 --roll-back -n stele
      kubectl stele cancel demo-4-1 -p 17 -p 18 -n stele
    """
    if partition and roll_back:
        raise BadInput("--roll-back is for whole plans; single partitions are always rolled back")
    numbers = partition or []
    where.ask(lambda console: _cancel(console, name, numbers, roll_back))
    what = f"partitions {', '.join(map(str, numbers))} of {name} are" if numbers else f"{name} is"
    print(f"{what} cancelled")


async def _cancel(console: "Console", name: str, partitions: list[int], roll_back: bool) -> None:
    plan = await console.rebalance(name)
    if plan.status.phase in FINAL:
        raise BadInput(f"{name} is {plan.status.phase}: there is nothing left to cancel")
    if partitions:
        left_out = sorted({*(plan.spec.cancel_migrations or ()), *partitions})
        await console.change_rebalance(name, {"cancelMigrations": left_out})
    else:
        await console.change_rebalance(name, {"cancel": True, "rollBack": roll_back or plan.spec.roll_back})


@on_cluster
def move(
    where: Where,
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of a TabletCluster.")],
    partition: Annotated[
        int, typer.Argument(metavar="PARTITION", min=0, max=PARTITIONS_MAX - 1, help="Number of a partition.")
    ],
    *,
    source: Annotated[
        str | None, typer.Option("--from", metavar="MEMBER", help="Member that gives up its replica.")
    ] = None,
    destination: Annotated[
        str | None, typer.Option("--to", metavar="MEMBER", help="Member that receives the replica.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
) -> None:
    """Move a replica of one partition to a named member.

    Creates a TabletRebalance and prints its name. With only --to, a missing replica is created; with only
    --from, a surplus replica is dropped.

    \b
    Examples:
      kubectl stele move demo 17 --from demo-0 --to demo-2 -n stele
      kubectl get str -n stele -w
    """
    if source is None and destination is None:
        raise BadInput("name the members that give up and receive the replica: --from MEMBER --to MEMBER")
    if source == destination:
        raise BadInput(f"--from and --to are both {source}: name two different members")
    named_move = {"partition": partition} | ({"from": source} if source else {})
    named_move |= {"to": destination} if destination else {}
    spec = {"cluster": cluster, "mode": "DryRun" if dry_run else "Execute", "moves": [named_move]}
    print(where.ask(lambda console: _move(console, spec)))


async def _move(console: "Console", spec: dict[str, Any]) -> str:
    cluster = await console.cluster(spec["cluster"])
    named_move = spec["moves"][0]
    last = max(cluster.spec.partitions, cluster.status.partitions.total) - 1
    if named_move["partition"] > last:
        raise BadInput(
            f"there is no partition {named_move['partition']} in {spec['cluster']}; the last one is {last}"
        )
    names = [member.metadata.name for member in await console.members(spec["cluster"])]
    for option in ("from", "to"):
        if option in named_move and named_move[option] not in names:
            raise BadInput(
                f"--{option}: there is no member {named_move[option]}; there are: {', '.join(names)}"
            )
    return await console.make_rebalance(f"{spec['cluster']}-move-{named_move['partition']}-", spec)


@on_cluster
def drain(
    where: Where,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Name of a TabletMember.")],
    *,
    undo: Annotated[
        bool, typer.Option("--undo", help="Stop draining and let the member hold data again.")
    ] = False,
) -> None:
    """Move all data off a member. It keeps running, and is the first to be removed on scale-down.

    \b
    Examples:
      kubectl stele drain demo-0 -n stele
      kubectl stele drain demo-0 --undo -n stele
    """
    where.ask(lambda console: _drain(console, member, undo=undo))
    print(f"{member} is {'no longer drained' if undo else 'being drained'}")


async def _drain(console: "Console", name: str, *, undo: bool) -> None:
    """Drain the member, or take that back. Raises Refused when no other member could take its data."""
    members = await console.members()
    cluster = next((each.spec.cluster for each in members if each.metadata.name == name), None)
    others = [each for each in members if each.spec.cluster == cluster and each.metadata.name != name]
    if not undo and cluster is not None and not any(_takes_data(each) for each in others):
        raise Refused(
            f"no other member of {cluster} takes data, so nothing can be moved off {name}: add a member "
            f"first (kubectl scale tabletcluster/{cluster}), or take a drain back (--undo)"
        )
    await console.change_member(name, {"drain": not undo})


def _takes_data(member: "TabletMember") -> bool:
    return not (member.spec.drain or member.spec.lite or member.metadata.deletion_timestamp is not None)
