"""The command line: which commands there are, and what an error means for the exit code."""

import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

import stele
from stele.cli import actions, bulk, copies, planning, quarantine, status, tablets, why
from stele.cli import output as out
from stele.errors import BadInput, SteleError, Unavailable, Uncertain

PROGRAM = "kubectl stele"

_ANYWHERE = frozenset({"-n", "--namespace", "--context", "--kubeconfig", "-o", "--output"})

app = typer.Typer(
    help="""Look at Stele's clusters, members and plans, and say what should become of them.

    \b
    Exit codes:
      0    done
      1    the request was understood and failed
      2    wrong usage or bad input; the message says what to correct
      3    the cluster, or a member, cannot be reached
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
    planning.plan,
    why.why,
    tablets.tablet,
    actions.approve,
    actions.cancel,
    actions.move,
    actions.drain,
    bulk.load,
    bulk.dump,
):
    app.command()(command)
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(copies.app, name="copies")


@app.command()
def version() -> None:
    """Print the version of this program.

    \b
    Example:
      kubectl stele version
    """
    print(stele.__version__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Names may hold letters that the terminal's encoding lacks.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    given = sys.argv[1:] if arguments is None else arguments
    try:
        get_command(app)(args=_command_first(given), prog_name=PROGRAM)
    except SteleError as error:
        out.say_error(str(error))
        return exit_code(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else out.EXIT_FAILURE
    return 0


def _command_first(arguments: Sequence[str]) -> list[str]:
    """kubectl takes these options anywhere; ours belong to the commands, so they go behind them."""
    rest, moved = list(arguments), []
    while rest and rest[0].partition("=")[0] in _ANYWHERE:
        count = 1 if "=" in rest[0] else 2
        moved += rest[:count]
        rest = rest[count:]
    return rest + moved


def exit_code(error: SteleError) -> int:
    """What the type of an error says to the calling script."""
    if isinstance(error, BadInput):
        return out.EXIT_BAD_INPUT
    return out.EXIT_UNREACHABLE if isinstance(error, Unavailable | Uncertain) else out.EXIT_FAILURE
