"""`kubectl stele tablet`: what a member itself says of its tablets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli import output as out
from stele.cli.options import ContextOption, KubeconfigOption, NamespaceOption, OutputOption, Where
from stele.cli.output import Output
from stele.core.table.ids import PARTITIONS_MAX

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.core.control.commands import OpId
    from stele.wire.admin import TabletFacts

MemberArgument = Annotated[str, typer.Argument(metavar="MEMBER", help="Name of a TabletMember, as its pod.")]


def tablet(
    member: MemberArgument,
    partition: Annotated[
        int | None,
        typer.Argument(
            metavar="PARTITION", min=0, max=PARTITIONS_MAX - 1, help="One partition; all when left out."
        ),
    ] = None,
    *,
    output: OutputOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show a member's tablets: state, generation, term, last operation, log, lag, sizes.

    The member is asked through the API server, which needs the right to get pods/proxy.

    \b
    Examples:
      kubectl stele tablet demo-0 -n stele
      kubectl stele tablet demo-0 17 -n stele -o json
    """
    where = Where(namespace, context, kubeconfig)
    if partition is None:
        _show_all(where.ask(lambda console: _all_tablets(console, member)), output)
        return
    path = f"/v1/tablets/{partition}"
    _show_one(where.ask(lambda console: console.ask_member("GET", member, path)), output)


async def _all_tablets(console: "Console", member: str) -> dict[str, Any]:
    """All pages as one document."""
    found = await console.ask_member("GET", member, "/v1/tablets")
    while found.get("next") is not None:
        more = await console.ask_member("GET", member, "/v1/tablets", after=str(found["next"]))
        found["tablets"] += more["tablets"]
        found["next"] = more.get("next")
    return found


def _show_all(answer: dict[str, Any], output: Output | None) -> None:
    if output in (Output.JSON, Output.YAML):
        out.data(answer, output)
        return
    import msgspec

    from stele.wire.admin import TabletList

    found: TabletList = msgspec.convert(answer, TabletList)
    wide = output is Output.WIDE
    headers = ["PARTITION", "ROLE", "STATE", "GEN", "VERSION", "TERM", "LAST", "APPLIED", "LOG", "LAG"]
    headers += ["ENTRIES", "SIZE", *(["FLUSHED", "COMMITTED", "LOG-SIZE", "COPY"] if wide else []), "OFFLINE"]
    out.table(headers, [_tablet_row(each, wide) for each in found.tablets])


def _tablet_row(each: "TabletFacts", wide: bool) -> list[str]:
    more = [str(each.flushed), _or_dash(each.committed), out.size(each.log.bytes), each.copy or "-"]
    return [
        str(each.partition),
        each.role,
        each.state,
        str(each.generation),
        str(each.version),
        _or_dash(each.term),
        op_text(each.last),
        op_text(each.applied),
        f"{each.log.first}..{each.log.last}",
        _lag(each),
        str(each.entries),
        out.size(each.bytes),
        *(more if wide else []),
        each.offline or "-",
    ]


def _show_one(answer: dict[str, Any], output: Output | None) -> None:
    if output in (Output.JSON, Output.YAML):
        out.data(answer, output)
        return
    import msgspec
    from rich.table import Table

    from stele.wire.admin import TabletFacts

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _tablet_facts(msgspec.convert(answer, TabletFacts)):
        table.add_row(name, value)
    out.console().print(table)


def _tablet_facts(each: "TabletFacts") -> Iterable[tuple[str, str]]:
    yield "Partition", f"{each.partition}, version {each.version}"
    yield "State", f"{each.state}, generation {each.generation}"
    yield "Role", f"{each.role}{', serves' if each.serving else ''}"
    if each.offline:
        yield "Offline", each.offline
    yield "Term", f"{_or_dash(each.term)}, promised {each.promised}"
    yield (
        "Last",
        f"{op_text(each.last)} (applied {op_text(each.applied)}, committed {_or_dash(each.committed)})",
    )
    log = each.log
    yield "Log", f"{log.first}..{log.last}, flushed {each.flushed}, {out.size(log.bytes)}"
    yield "Lag", _lag(each)
    yield "Data", f"{each.entries} entries, {out.size(each.bytes)}"
    if each.copy:
        yield "Copy", each.copy
    for old in each.quarantined:
        yield "Quarantine", f"{old.partition}/{old.generation}: {old.entries} entries, {out.size(old.bytes)}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def op_text(found: "OpId") -> str:
    """An operation's place in a log: term, then index."""
    return f"{found.term}.{found.index}"


def _lag(each: "TabletFacts") -> str:
    """Of a backup its own, of an owner that of each member which takes operations from it."""
    if each.behind:
        return ",".join(f"{member}:{count}" for member, count in sorted(each.behind.items()))
    return _or_dash(each.lag)
