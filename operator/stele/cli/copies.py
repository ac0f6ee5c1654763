"""`kubectl stele copies`: the current copy sessions, as reported by their sources."""

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from stele.cli import output as out
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.output import Output
from stele.errors import BadInput, Refused, SteleError

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.wire.admin import SessionFacts

ASKED_AT_ONCE_MAX = 16
"""Members that are queried concurrently."""

HEADERS = [
    "SESSION",
    "SOURCE",
    "DESTINATION",
    "ENGINE",
    "TABLETS",
    "SIZE",
    "SENT",
    "MB/S",
    "AGE",
    "LEASE",
    "HELD",
]

app = typer.Typer(
    help="""List the current copy sessions, or cancel one.

    \b
    Examples:
      kubectl stele copies -n stele
      kubectl stele copies --cluster demo -o json
      kubectl stele copies cancel s3-17 -n stele
    """,
    invoke_without_command=True,
    rich_markup_mode=None,
)

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Cluster whose sessions to list; all by default."),
]


@app.callback()
@on_cluster
def copies(
    where: Where, ctx: typer.Context, cluster: ClusterOption = None, *, output: OutputOption = None
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    sessions, errors = where.ask(lambda console: _ask_all(console, cluster))
    for text in errors:
        out.say_error(f"the sessions of a member are not listed: {text}")
    import msgspec

    if out.data({"sessions": msgspec.to_builtins(sessions), "silent": errors}, output):
        return
    wide = output is Output.WIDE
    out.table([*HEADERS, *(["LIMIT", "NOTE"] if wide else [])], [_row(each, wide) for each in sessions])


@app.command()
@on_cluster
def cancel(
    where: Where,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Name in the list, such as s3-17.")],
    cluster: ClusterOption = None,
) -> None:
    """End a session: the operator rolls its migrations back and plans them again.

    \b
    Example:
      kubectl stele copies cancel s3-17 -n stele
    """

    from stele.wire.admin import Done

    async def cancel_session(console: "Console") -> str:
        sessions, errors = await _ask_all(console, cluster)
        sources = [each.source for each in sessions if each.session == session and not each.ended]
        if not sources:
            listed = ", ".join(each.session for each in sessions if not each.ended) or "none"
            unknown = f"; members that did not answer: {'; '.join(errors)}" if errors else ""
            raise BadInput(f'SESSION is "{session}"; the open sessions are: {listed}{unknown}', "NOT_FOUND")
        if len(sources) > 1:
            raise Refused(
                f"{session} is open at {', '.join(sources)}; select a cluster with --cluster", "NOT_UNIQUE"
            )
        await console.ask_member("DELETE", sources[0], f"/v1/sessions/{quote(session, safe='')}", Done)
        return sources[0]

    source = where.ask(cancel_session)
    print(f"{session} of {source} is cancelled; the operator rolls its migrations back and plans them again")


async def _ask_all(console: "Console", cluster: str | None) -> tuple[list["SessionFacts"], list[str]]:
    """Return the sessions of all members that answer, and the errors of the others."""
    import asyncio

    from stele.wire.admin import SessionList

    gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def ask(member: str) -> SessionList:
        async with gate:
            return await console.ask_member("GET", member, "/v1/sessions", SessionList)

    members = [each.metadata.name for each in await console.members(cluster)]
    answers = await asyncio.gather(*map(ask, members), return_exceptions=True)
    sessions: list[SessionFacts] = []
    errors: list[str] = []
    for answer in answers:
        if isinstance(answer, SteleError):
            errors.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            sessions += answer.sessions
    return sessions, errors


def _row(each: "SessionFacts", wide: bool) -> list[str]:
    sent = each.sent_bytes
    rate = "-" if sent is None or not each.age_seconds else f"{sent / each.age_seconds / 1e6:.1f}"
    row = [
        each.session,
        each.source,
        each.destination or "-",
        each.engine or "-",
        str(each.tablets),
        out.size(each.bytes),
        "-" if sent is None else out.size(sent),
        rate,
        f"{each.age_seconds:.0f}s",
        "ended" if each.ended else f"{each.lease_left_seconds:.0f}s",
        out.size(each.held_bytes),
    ]
    limit = f"{each.limit_bytes_per_second / 1e6:.1f}" if each.limit_bytes_per_second else "-"
    return [*row, limit, each.ended or "-"] if wide else row
