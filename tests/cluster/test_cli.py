"""The command line: help for everything, one sentence for a mistake, and never a traceback."""

import sys
from pathlib import Path

import pytest

from e2e.cluster import cli

COMMANDS = ("up", "down", "status", "load", "kubeconfig", "images", "programs", "doctor")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STELE_CACHE", str(tmp_path / "cache"))
    # Set and taken away again by monkeypatch, so that what the command line sets does not outlive the test.
    for variable in ("STELE_KUBECONFIG", "STELE_CONTEXT"):
        monkeypatch.setenv(variable, "")


def test_help_names_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0
    assert [name for name in COMMANDS if name not in said] == []
    assert "STELE_CACHE" in said
    assert "exit codes" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    assert len(capsys.readouterr().out) > 60


@pytest.mark.parametrize("words", [[], ["upp"], ["load"], ["up", "now"], ["--context"]])
def test_wrong_use_ends_with_2_and_the_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert "usage: python -m e2e.cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kubeconfig", "/nowhere/config", "up"], "/nowhere/config does not exist"),
        (["--context", "mine", "up"], "without a kubeconfig"),
        (["images", "opreator"], "There is no image 'opreator'"),
        (["load", "localhost/stele-operator:dev"], "run `python -m e2e.cluster up` first"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_a_given_cluster_is_never_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "config"
    given.write_text("apiVersion: v1\nkind: Config\n")
    assert cli.main(["--kubeconfig", str(given), "down"]) == 1
    assert "never removed" in capsys.readouterr().err


def test_the_given_kubeconfig_is_the_one_to_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "config"
    given.write_text("apiVersion: v1\nkind: Config\n")
    assert cli.main(["--kubeconfig", str(given), "kubeconfig"]) == 0
    assert capsys.readouterr().out.strip() == str(given)


def test_an_unfit_machine_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert cli.main(["doctor"]) == 2
    assert "Go is missing" in capsys.readouterr().err
    assert sys.exc_info() == (None, None, None)
