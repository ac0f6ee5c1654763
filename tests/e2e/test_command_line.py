"""Mistakes at the command line: one sentence, exit code 2, and nothing has begun."""

from pathlib import Path

import pytest
import yaml

from e2e.cluster import doctor
from e2e.cluster.errors import MachineUnfitError
from e2e.demo import stage
from e2e.demo.__main__ import entry, parser, settings_of
from e2e.demo.settings import ALL_PHASES, EXAMPLE, SMOKE_NODE_PORT, PhaseName, Settings


@pytest.fixture
def nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check", lambda **_: None)

    def begin(_: stage.Stage) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr(stage.Stage, "prepare", begin)


@pytest.mark.usefixtures("nothing_begins")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "/no/such.csv"], "does not exist"),
        (["--members", "0"], "--members is 0"),
        (["--members", "99"], "1 to 9"),
        (["--kubeconfig", "/no/such"], "does not exist"),
        (["--context", "there"], "without a kubeconfig"),
    ],
)
def test_mistakes_are_told_before_work_begins(
    words: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STELE_KUBECONFIG", "")
    monkeypatch.setenv("STELE_CONTEXT", "")
    assert entry(words) == 2
    out, err = capsys.readouterr()
    assert (sentence in err, out, "Traceback" in err) == (True, "", False)


def test_an_unfit_machine_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mismatched(**_: bool) -> None:
        raise MachineUnfitError("The test cluster needs root.")

    monkeypatch.setattr(doctor, "check", mismatched)
    assert entry([]) == 2
    assert capsys.readouterr().err == "The test cluster needs root.\n"


@pytest.mark.parametrize(
    "words", [["--phases", "nap"], ["--phases", "scale-down"], ["--rate", "0"], ["--rate", "x"], ["fly"]]
)
def test_wrong_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_sizes_of_a_small_run() -> None:
    small = settings_of(parser().parse_args(["--small"]))
    assert (small.records_max, small.padded_entries, PhaseName.SCALE_DOWN in small.phases) == (
        3000,
        600,
        False,
    )
    assert settings_of(parser().parse_args([])).phases == ALL_PHASES
    named = settings_of(parser().parse_args(["--phases", "kill-member,quiet", "--data", "f.csv"]))
    assert (named.phases, named.data) == ((PhaseName.QUIET, PhaseName.KILL_MEMBER), Path("f.csv"))


def test_every_phase_can_be_named() -> None:
    """Also those that the demo leaves out, in their order whatever that of the names."""
    every = ",".join(reversed(PhaseName))
    assert settings_of(parser().parse_args(["--phases", every])).phases == tuple(PhaseName)


def test_the_manifest_is_the_example_with_the_names_of_the_run() -> None:
    example = EXAMPLE.read_text()
    made = stage.manifest(example, Settings(namespace="n", cluster="c", members=5, node_port=SMOKE_NODE_PORT))
    assert (made["metadata"], made["spec"]["members"]) == ({"name": "c", "namespace": "n"}, 5)
    assert made["spec"]["resp"]["nodePort"] == SMOKE_NODE_PORT
    as_it_is = stage.manifest(example, Settings())
    assert as_it_is["spec"] == yaml.safe_load(example)["spec"]
