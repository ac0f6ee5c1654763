"""`kubectl stele plan`: shows a plan without running it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli import output as out
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.output import Output
from stele.errors import BadInput

if TYPE_CHECKING:
    from stele.explain.situation import Situation


@on_cluster
def plan(
    where: Where,
    cluster: Annotated[
        str | None, typer.Argument(metavar="CLUSTER", help="Name of the TabletCluster to plan for.")
    ] = None,
    *,
    offline: Annotated[
        str | None,
        typer.Option(
            "--offline", metavar="FILE", help="Plan for a table in a JSON file; - reads standard input."
        ),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Show the migrations that would balance a partition table, without running them.

    For CLUSTER, show what the operator would plan now, given the stored table and the members' states.

    FILE needs no cluster. It holds {"partitions": P, "replicas": R, "members": [{"name", "weight"?, "zone"?,
    "lite"?, "leaving"?, "away"?}], "current": [[name or null, ...], ...], "moves"?: [{"partition", "source",
    "destination"}]}. Names in "current" that "members" lacks are of members that are gone for
    good; a member that is "away" is expected back and left alone.

    \b
    Examples:
      kubectl stele plan demo -n stele
      kubectl stele plan --offline table.json
      kubectl stele plan --offline - -o json < table.json | jq .stats
    """
    if (cluster is None) == (offline is None):
        raise BadInput("give either the name of a cluster or --offline FILE; see kubectl stele plan --help")
    if offline is not None:
        from stele.cli.plan_file import load

        _show(load(offline), output)
        return
    from stele.cli import cluster_view

    name = str(cluster)
    view = where.ask(lambda console: cluster_view.read_cluster(console, name))
    _show(view.situation, output, view.obstacles)


def _show(situation: "Situation", output: Output | None, obstacles: Sequence[str] = ()) -> None:
    from stele.explain.situation import document, planned

    outcome = planned(situation)
    if out.data(document(outcome), output):
        return
    from stele.cli import plan_view

    console = out.console()
    plan_view.show(console, outcome, wide=output is Output.WIDE)
    if obstacles:
        console.print(f"\nNot executed now: {', '.join(obstacles)}")
