"""What holds for every command: help with examples, exit codes, no traceback for a user's mistake."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import stele
from stele.cli import planning
from stele.cli.main import app
from stele.cli.options import Where
from stele.errors import Unavailable
from tests.cli.conftest import Run

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]
QUARANTINE = ["dump", "list", "purge", "restore"]
COPIES = ["cancel"]
TX = ["list", "resolve"]


@pytest.mark.parametrize(
    "command",
    COMMANDS
    + [f"quarantine {name}" for name in QUARANTINE]
    + [f"copies {name}" for name in COPIES]
    + [f"tx {name}" for name in TX],
)
def test_every_command_explains_itself_with_an_example(run: Run, command: str) -> None:
    ran = run(*command.split(), "--help")
    assert ran.code == 0
    assert "Example" in ran.out
    assert f"  kubectl stele {command}" in ran.out


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, sub in getattr(command, "commands", {}).items():
        yield from _commands(sub, f"{name} {word}".strip())


def test_the_reference_names_every_command_and_option() -> None:
    pages = [ROOT / "docs/reference/kubectl-stele.md", ROOT / "docs/operating/bulk.md"]
    text = "".join(page.read_text() for page in pages)
    for name, command in _commands(get_command(app)):
        assert f"`{name}" in text
        for option in command.params:
            names = [each for each in option.opts if each.startswith("-")]
            assert not names or any(each in text for each in names), f"{name} {names}"


def test_the_overview_lists_commands_and_exit_codes(run: Run) -> None:
    found = run("--help").out
    assert all(f"  {command} " in found for command in COMMANDS)
    assert "130  interrupted" in found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plam"], "Did you mean 'plan'"),
        (["plan", "--offlin", "x"], "--offline"),
        (["plan", "--offline", "x", "-o", "xml"], "xml"),
        (["version", "one", "more"], "more"),
    ],
)
def test_wrong_usage_ends_with_two(run: Run, arguments: list[str], said: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-n", "stele", "playground", "up"], "-n stele"),
        (["playground", "up", "--namespace=stele"], "--namespace=stele"),
        (["playground", "--context", "kind", "status"], "--context kind"),
        (["-A", "playground", "status"], "-A"),
        (["-nstele", "playground", "up"], "-nstele"),
    ],
)
def test_a_playground_has_no_place_in_kubernetes(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.setattr("os.execv", lambda program, words: None)
    ran = run(*arguments)
    assert (ran.code, f" {named} says where in Kubernetes, and a playground is" in ran.err) == (2, True)


def test_options_before_the_command_reach_a_playground(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, words: ran.append(words))
    assert run("-o", "json", "playground", "status").code == 0
    assert ran[0][-4:] == ["stele.playground", "status", "-o", "json"]


@pytest.mark.parametrize(
    "place", [["-n", "far"], ["-nfar"], ["-n=far"], ["--namespace", "far"], ["--namespace=far"]]
)
@pytest.mark.parametrize("before", [True, False])
def test_a_namespace_is_given_as_for_kubectl(
    run: Run, monkeypatch: pytest.MonkeyPatch, place: list[str], before: bool
) -> None:
    asked: list[str | None] = []

    def ask(where: Where, _: object) -> Any:
        asked.append(where.namespace)
        raise Unavailable("nobody is asked here")

    monkeypatch.setattr(Where, "ask", ask)
    words = [*place, "-o=json", "status"] if before else ["status", "-ojson", *place]
    assert (run(*words).code, asked) == (3, ["far"])


def test_version(run: Run) -> None:
    assert run("version").out == f"{stele.__version__}\n"


def test_an_interrupt_ends_quietly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "_show", interrupted)
    ran = run(
        "plan",
        "--offline",
        "-",
        stdin=b'{"partitions":1,"replicas":1,"members":[{"name":"a"}],"current":[[]]}',
    )
    assert (ran.code, ran.out, ran.err) == (130, "", "")
