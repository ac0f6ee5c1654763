"""The demo runs the chart's own test once it is installed, and says what its pod said when that fails."""

from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import kind
from e2e.cluster.errors import ClusterError
from e2e.demo import stage
from e2e.demo.errors import DemoError
from e2e.demo.settings import CHART, Settings

SETTINGS = Settings(release="r", operator_namespace="n")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run, without a cluster; a test of helm fails."""
    ran: list[list[str]] = []

    def run(command: list[str], *_: Any, **__: Any) -> None:
        ran.append(command)
        if command[:2] == ["helm", "test"]:
            raise ClusterError("helm test r failed with exit code 1.")

    def output(command: list[str], **_: Any) -> str:
        ran.append(command)
        if "logs" in command:
            raise ClusterError("there is no log")
        return "Failed to pull the image"

    monkeypatch.setattr(kind, "env", dict)
    monkeypatch.setattr(stage, "run", run)
    monkeypatch.setattr(stage, "output", output)
    return ran


def test_it_runs_right_after_the_chart_is_there(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stage.Stage, "_cluster_and_images", lambda _: {})
    monkeypatch.setattr(stage.Stage, "_namespaces", lambda _: None)
    with pytest.raises(DemoError):
        stage.Stage(SETTINGS, tmp_path).prepare()
    assert [command[:2] for command in commands[:2]] == [["helm", "upgrade"], ["helm", "test"]]
    limit = f"--timeout={stage.HELM_TEST_SECONDS_MAX}s"
    assert commands[1] == ["helm", "test", "r", "--namespace", "n", limit]


def test_a_failure_says_what_the_pod_says(commands: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(DemoError) as failed:
        stage.Stage(SETTINGS, tmp_path)._helm_test()
    for text in ("release r runs, but helm test could not", "exit code 1", "Failed to pull", "no log"):
        assert text in str(failed.value)
    assert all(f"{stage.TEST_POD_SELECTOR},app.kubernetes.io/instance=r" in each[-1] for each in commands[1:])


def test_the_pod_is_found_by_its_labels() -> None:
    name, _, value = stage.TEST_POD_SELECTOR.partition("=")
    text = (CHART / "templates" / "tests" / "ready.yaml").read_text()
    assert f'"{name}" "{value}"' in text
