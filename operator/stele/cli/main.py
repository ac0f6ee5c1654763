"""The command line: its commands, and exit codes of errors."""

import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from stele.cli import (
    actions,
    bench,
    bulk,
    copies,
    handover,
    live,
    logs,
    page,
    pausing,
    planning,
    playground,
    promote,
    quarantine,
    recover,
    redis_cli,
    replace,
    report,
    rollout,
    state,
    status,
    tablets,
    transactions,
    verify,
    version,
    why,
)
from stele.cli import output as out
from stele.cli.options import SHORT_WITH_VALUE, split_option, words_of_option
from stele.errors import BadInput, SteleError, Unavailable, Uncertain

PROGRAM = "kubectl stele"

app = typer.Typer(
    help="""Inspect and manage Stele's clusters, members and plans.

    \b
    Exit codes:
      0    success
      1    the request failed
      2    invalid usage or input; the message says what to correct
      3    the cluster or a member cannot be reached
      130  interrupted
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for command in (
    status.status,
    status.members,
    status.partitions,
    live.watch,
    logs.logs,
    report.report,
    verify.verify,
    redis_cli.cli,
    bench.bench,
    planning.plan,
    why.why,
    page.page,
    tablets.tablet,
    actions.approve,
    actions.cancel,
    pausing.pause,
    pausing.resume,
    actions.move,
    actions.drain,
    promote.promote,
    state.state,
    handover.handover,
    replace.replace,
    recover.recover,
    bulk.load,
    bulk.dump,
    version.version,
):
    app.command()(command)
app.command(context_settings=playground.PASSED_ON)(playground.playground)
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(copies.app, name="copies")
app.add_typer(transactions.app, name="tx")
app.add_typer(rollout.app, name="rollout")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Names may contain characters that the terminal's encoding lacks.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    raw_arguments = sys.argv[1:] if arguments is None else arguments
    return exit_code_of(app, _command_first(raw_arguments), PROGRAM)


def exit_code_of(commands: typer.Typer, arguments: Sequence[str] | None, program: str) -> int:
    """Run one command of a program, say its error, and return the exit code."""
    try:
        get_command(commands)(args=None if arguments is None else list(arguments), prog_name=program)
    except SteleError as error:
        out.say_error(str(error))
        return exit_code(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else out.EXIT_FAILURE
    return 0


def _command_first(arguments: Sequence[str]) -> list[str]:
    """Move leading options behind the command: kubectl accepts them anywhere, typer only there.

    What follows `--` is for another program.
    """
    remaining, moved = list(arguments), []
    while remaining and (count := words_of_option(remaining)):
        moved += remaining[:count]
        remaining = remaining[count:]
    end = remaining.index("--") if "--" in remaining else len(remaining)
    return [*map(_without_equals, [*remaining[:end], *moved]), *remaining[end:]]


def _without_equals(word: str) -> str:
    """Write `-n=NAME` as `-nNAME`: to typer `=` would be part of the name."""
    name, attached = split_option(word)
    return f"{name}{attached}" if attached and name in SHORT_WITH_VALUE else word


def exit_code(error: SteleError) -> int:
    """Return the exit code for an error."""
    if isinstance(error, BadInput):
        return out.EXIT_BAD_INPUT
    return out.EXIT_UNREACHABLE if isinstance(error, Unavailable | Uncertain) else out.EXIT_FAILURE
