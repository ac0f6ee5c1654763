"""`kubectl stele plan`."""

from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli import output as out
from stele.cli.options import OutputOption
from stele.cli.output import Output

if TYPE_CHECKING:
    from stele.cli.situation import Situation


def plan(
    offline: Annotated[
        str,
        typer.Option(
            "--offline", metavar="FILE", help="A table and its members as JSON; - reads standard input."
        ),
    ],
    output: OutputOption = None,
) -> None:
    """Show which migrations would balance a partition table, without doing anything.

    FILE holds {"partitions": P, "replicas": R, "members": [{"name", "weight"?, "zone"?, "lite"?,
    "leaving"?}], "current": [[name or null, ...], ...], "moves"?: [{"partition", "source",
    "destination"}]}. Names in "current" that "members" does not have are of members that are gone. No
    cluster is needed.

    \b
    Examples:
      kubectl stele plan --offline table.json
      kubectl stele plan --offline - -o json < table.json | jq .stats
    """
    from stele.cli.plan_file import load

    _show(load(offline), output)


def _show(situation: "Situation", output: Output | None) -> None:
    from stele.cli.situation import document, planned

    outcome = planned(situation)
    if output in (Output.JSON, Output.YAML):
        out.data(document(outcome), output)
        return
    from stele.cli import plan_view

    plan_view.show(out.console(), outcome, wide=output is Output.WIDE)
