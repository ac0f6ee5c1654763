"""`kubectl stele handover`: empties a member of ownership, before its node or its pod goes."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli.options import Where, on_cluster
from stele.cli.waiting import Progress, follow
from stele.errors import BadInput, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stele.adapters.kubernetes.console import Console
    from stele.explain.cluster_view import ClusterView
    from stele.model import TabletRebalance

REFUSALS_SHOWN_MAX = 10
"""Reasons, and partitions of each, that are listed."""

FINAL = frozenset({"Done", "Failed", "Superseded"})


@on_cluster
def handover(
    where: Where,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Name of a TabletMember.")],
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="MEMBER", help="Only this member takes over.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done, for 600 s at most.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let the member own partitions again.")] = False,
) -> None:
    """Hand over all partitions that a member owns to backups, evenly and without copying data.

    Requests to a partition wait some milliseconds meanwhile. The member keeps its replicas, and owns nothing
    until --undo: then it gets its share back. Partitions with a single replica stay, as no other member can
    own them. With --wait, the exit code is 1 when any stay.

    Creates a TabletRebalance and prints its name.

    \b
    Examples:
      kubectl stele handover demo-0 --wait -n stele
      kubectl drain NODE ...
      kubectl stele handover demo-0 --undo -n stele
    """
    if member == to:
        raise BadInput(f"MEMBER and --to are both {member}: name two different members")
    if undo:
        if to or wait:
            raise BadInput("--undo takes back the hand-over as a whole: leave out --to and --wait")
        print(where.ask(lambda console: _undo(console, member)))
        return
    name = where.ask(lambda console: _hand_over(console, member, to))
    if wait:
        undone, hint = f"{name} is not done", f"; see kubectl describe str {name}"
        print(where.ask(lambda console: follow(lambda: _progress(console, name, member), undone, hint)))


async def _hand_over(console: "Console", member: str, to: str | None) -> str:
    """Print what will be done, and create the TabletRebalance unless there is one. Return its name."""
    from stele.cli.cluster_view import cluster_of, read_cluster
    from stele.explain.cluster_view import handovers

    cluster = await cluster_of(console, member)
    view = await read_cluster(console, cluster)
    indexes = {each.metadata.name: index for index, each in view.members.items()}
    if to is not None and to not in indexes:
        raise BadInput(f"--to: there is no member {to} in {cluster}; there are: {', '.join(indexes)}")
    for line in _preview(view, indexes[member], None if to is None else indexes[to]):
        print(line)
    for name, wanted in handovers(await console.rebalances(cluster)).items():
        if (wanted.member, wanted.destination) == (member, to):
            print(f"{name} asks for this already")
            return name
    spec = {"cluster": cluster, "handover": {"member": member} | ({"to": to} if to else {})}
    name = await console.make_rebalance(f"{member}-handover-", spec)
    print(f"{name} is created; {member} owns nothing until: kubectl stele handover {member} --undo")
    return name


def _preview(view: "ClusterView", member: int, to: int | None) -> "Iterator[str]":
    from stele.core.placement.handover import handover as planned
    from stele.explain.situation import Outcome
    from stele.explain.text import refusal_lines

    situation = view.situation
    names = situation.names
    plan = planned(situation.table, member, situation.members, to=to)
    takers = Counter(names[each.destination] for each in plan.migrations if each.destination is not None)
    shares = ", ".join(f"{number} to {name}" for name, number in sorted(takers.items()))
    yield f"{names[member]} hands over {len(plan.migrations)} partitions{': ' * bool(shares)}{shares}"
    for line in refusal_lines(Outcome(situation, plan, 0.0), REFUSALS_SHOWN_MAX):
        yield f"stays: {line}"
    for obstacle in view.obstacles:
        if "approval" not in obstacle:
            yield f"waits: {obstacle}"


async def _undo(console: "Console", member: str) -> str:
    from stele.cli.cluster_view import cluster_of
    from stele.explain.cluster_view import handovers

    present = handovers(await console.rebalances(await cluster_of(console, member)))
    names = [name for name, wanted in present.items() if wanted.member == member]
    for name in names:
        await console.change_rebalance(name, {"cancel": True})
    if not names:
        return f"{member} is not handed over: there is nothing to undo"
    return f"{member} gets partitions to own again, with the next plan"


async def _progress(console: "Console", name: str, member: str) -> Progress:
    """Raises Refused when partitions stay."""
    plan = await console.rebalance(name)
    if plan.status.phase in FINAL:
        return Progress(_result(plan, member), done=True)
    planned = plan.status.planned.swap
    return Progress(f"{plan.status.done.swap} of {planned} partitions are handed over" if planned else "")


def _result(plan: "TabletRebalance", member: str) -> str:
    status, name = plan.status, plan.metadata.name
    if status.phase != "Done":
        why = status.refusals[0].message if status.refusals else "it was cancelled"
        raise Refused(f"{name} is {status.phase}: {why}")
    if status.refusals:
        text = f"{status.refusals_total} partitions stay with {member}, such as partition"
        raise Refused(f"{text} {status.refusals[0].partition}: {status.refusals[0].message}", "NO_BACKUP")
    return f"{member} owns nothing, {status.done.swap} partitions are handed over"
