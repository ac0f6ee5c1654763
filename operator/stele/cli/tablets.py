"""`kubectl stele tablet`: the tablets that a member reports."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli import output as out
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.output import Output
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import Corrupt

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.core.control.commands import OpId
    from stele.wire.admin import TabletFacts, TabletList

MemberArgument = Annotated[
    str, typer.Argument(metavar="MEMBER", help="Name of a TabletMember, which is also that of its pod.")
]


@on_cluster
def tablet(
    where: Where,
    member: MemberArgument,
    partition: Annotated[
        int | None,
        typer.Argument(
            metavar="PARTITION", min=0, max=PARTITIONS_MAX - 1, help="Number of a partition; all by default."
        ),
    ] = None,
    *,
    output: OutputOption = None,
) -> None:
    """Show a member's tablets: state, generation, term, last operation, log, lag, sizes.

    Queries the member by a forwarded port with the admin's certificate, or through the API server
    (pods/proxy) where members take plain connections.

    \b
    Examples:
      kubectl stele tablet demo-0 -n stele
      kubectl stele tablet demo-0 17 -n stele -o json
    """
    if partition is None:
        _show_all(where.ask(lambda console: _all_tablets(console, member)), output)
        return
    from stele.wire.admin import TabletFacts

    path = f"/v1/tablets/{partition}"
    _show_one(where.ask(lambda console: console.ask_member("GET", member, path, TabletFacts)), output)


async def _all_tablets(console: "Console", member: str) -> "TabletList":
    """Return all pages as one document. Raises Corrupt for pages that do not go on, or without an end."""
    import msgspec

    from stele.wire.admin import TabletList

    page = await console.ask_member("GET", member, "/v1/tablets", TabletList)
    tablets, last = [*page.tablets], -1
    while page.next is not None:
        if not last < page.next < PARTITIONS_MAX or len(tablets) > PARTITIONS_MAX:
            raise Corrupt(
                f"{member}: after the page that ends with partition {last} it names {page.next} as the next "
                f"one; expected one above it and below {PARTITIONS_MAX}: compare its image with the others'"
            )
        last = page.next
        page = await console.ask_member("GET", member, "/v1/tablets", TabletList, after=str(last))
        tablets += page.tablets
    return msgspec.structs.replace(page, tablets=tuple(tablets))


def _show_all(tablet_list: "TabletList", output: Output | None) -> None:
    import msgspec

    if out.data(msgspec.to_builtins(tablet_list), output):
        return
    wide = output is Output.WIDE
    headers = ["PARTITION", "ROLE", "STATE", "GEN", "VERSION", "TERM", "LAST", "APPLIED", "LOG", "LAG"]
    headers += ["ENTRIES", "SIZE", *(["FLUSHED", "COMMITTED", "LOG-SIZE", "COPY"] if wide else []), "OFFLINE"]
    out.table(headers, [_tablet_row(each, wide) for each in tablet_list.tablets])


def _tablet_row(each: "TabletFacts", wide: bool) -> list[str]:
    wide_cells = [str(each.flushed), _or_dash(each.committed), out.size(each.log.bytes), each.copy or "-"]
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
        *(wide_cells if wide else []),
        each.offline or "-",
    ]


def _show_one(tablet: "TabletFacts", output: Output | None) -> None:
    import msgspec

    if not out.data(msgspec.to_builtins(tablet), output):
        out.facts(_tablet_facts(tablet))


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


def op_text(op: "OpId") -> str:
    """Format an operation's position in a log: term, then index."""
    return f"{op.term}.{op.index}"


def _lag(each: "TabletFacts") -> str:
    """Return a backup's lag, or, for an owner, that of each member which it feeds."""
    if each.behind:
        return ",".join(f"{member}:{count}" for member, count in sorted(each.behind.items()))
    return _or_dash(each.lag)
