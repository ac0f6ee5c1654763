"""`kubectl stele version`: this program, and what runs in a cluster."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

import stele
from stele.cli import output as out
from stele.cli.options import OutputOption, Where, on_cluster

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

OptionalCluster = Annotated[
    str | None,
    typer.Argument(metavar="CLUSTER", help="Name of a TabletCluster, to ask its members and operator, too."),
]


@on_cluster
def version(where: Where, cluster: OptionalCluster = None, *, output: OutputOption = None) -> None:
    """Print the version of this program; with a cluster also those of its operator and members.

    \b
    Examples:
      kubectl stele version
      kubectl stele version demo -n stele
    """
    if cluster is None:
        if not out.data({"version": stele.__version__}, output):
            print(stele.__version__)
        return
    running = where.ask(lambda console: _running(console, cluster))
    facts = [{"component": kind, "name": name, "version": number} for kind, name, number in running]
    document = {"version": stele.__version__, "running": facts, "skew": skew(running)}
    if out.data(document, output):
        return
    rows = [[kind, name, number or "unknown"] for kind, name, number in running]
    out.table(["COMPONENT", "NAME", "VERSION"], [["kubectl stele", "-", stele.__version__], *rows])
    for sentence in document["skew"]:
        print(sentence)


async def _running(console: "Console", cluster: str) -> list[tuple[str, str, str]]:
    source = console.report_source(cluster)
    await source.check()
    return await source.running()


def skew(running: list[tuple[str, str, str]]) -> list[str]:
    """Return what differs, in sentences that say what to do."""
    own, sentences = stele.__version__, list[str]()
    of_members = {number for kind, _, number in running if kind == "member" and number}
    of_operators = {number for kind, _, number in running if kind == "operator" and number}
    if len(of_members) > 1:
        listed = ", ".join(sorted(of_members, key=_order))
        sentences.append(f"members run {listed}: an update is under way or held back (rollout status)")
    others = sorted((of_members | of_operators) - {own}, key=_order)
    if others and _order(others[-1]) > _order(own):
        sentences.append(f"this command is older than {others[-1]}, which runs there: update it")
    elif others:
        sentences.append(f"this command is newer than {others[0]}, which runs there: some commands may fail")
    if any(_order(member) > _order(operator) for member in of_members for operator in of_operators):
        sentences.append("a member is newer than its operator: update the operator first (helm upgrade)")
    return sentences


def _order(number: str) -> tuple[Any, ...]:
    """Return what to compare versions by; parts that are no number come before 0."""
    return tuple(int(part) if part.isascii() and part.isdigit() else -1 for part in number.split("."))
