"""Whose Kubernetes is used, and what is built for it. Every program here only notes how it is run."""

from pathlib import Path

import pytest

from e2e.cluster import debian, doctor, engine, kind, podman
from e2e.cluster.engine import Engine
from e2e.demo import stage
from e2e.demo.errors import PreflightError
from e2e.demo.settings import Settings

OURS = Engine("podman", published_image=False)


class Machine:
    """A machine that has no programs but those that a test gives it."""

    def __init__(self, folder: Path) -> None:
        self._bin, self._notes = folder / "bin", folder / "notes"
        self._bin.mkdir()

    def has(self, *names: str, answer: str = "", code: int = 0) -> None:
        """Add programs that say `answer` and end with `code`."""
        for name in names:
            program = self._bin / name
            program.write_text(f"#!/bin/sh\necho \"{name} $*\" >> '{self._notes}'\n{answer}\nexit {code}\n")
            program.chmod(0o755)

    @property
    def path(self) -> str:
        return str(self._bin)

    @property
    def used(self) -> list[str]:
        """The commands that were run."""
        return self._notes.read_text().splitlines() if self._notes.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("STELE_CACHE", str(tmp_path / "cache"))
    for variable in ("STELE_KUBECONFIG", "STELE_CONTEXT"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(engine, "CGROUP_V2", tmp_path / "cgroup.controllers")
    # Otherwise the machine's own programs would be found as well.
    monkeypatch.setattr(podman, "environment", lambda: {"PATH": made.path})
    return made


def docker(cgroup: int, registry: bool) -> str:
    """What a docker answers whose containers get that cgroup version, with or without a registry."""
    return f'[ "$1" != info ] || echo {cgroup}\n[ "$1" != manifest ] || exit {0 if registry else 1}'


def test_a_machine_without_an_engine_makes_its_own_nodes(machine: Machine) -> None:
    assert engine.choose() == OURS


@pytest.mark.parametrize(
    ("answer", "published"),
    [(docker(2, registry=True), True), (docker(1, registry=True), False), (docker(2, registry=False), False)],
)
def test_docker_is_used_if_it_can_pull_what_it_can_run(
    machine: Machine, answer: str, published: bool
) -> None:
    machine.has("docker", answer=answer)
    assert engine.choose() == (Engine("docker", published_image=True) if published else OURS)


def test_a_docker_that_does_not_answer_is_not_used(machine: Machine) -> None:
    machine.has("docker", code=1)
    assert engine.choose() == OURS


@pytest.mark.parametrize("registry", [True, False])
@pytest.mark.parametrize("cgroup", [1, 2])
def test_podman_is_used_if_it_can_pull_what_it_can_run(machine: Machine, cgroup: int, registry: bool) -> None:
    machine.has("podman", code=0 if registry else 1)
    if cgroup == 2:
        engine.CGROUP_V2.touch()
    assert engine.choose() == Engine("podman", published_image=registry and cgroup == 2)


def test_kubernetes_is_built_unless_the_image_and_all_tools_are_there(machine: Machine) -> None:
    published = Engine("docker", published_image=True)
    assert engine.builds(OURS)
    assert engine.builds(published)
    machine.has("kind", "kubectl")
    assert engine.builds(published)
    machine.has("helm")
    assert not engine.builds(published)
    assert engine.builds(OURS)


def test_a_cluster_of_published_nodes_is_made_and_removed_without_a_build(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "check_user", lambda: None)
    monkeypatch.setattr(debian, "ensure_packages", lambda: None)
    checked: list[bool] = []
    monkeypatch.setattr(doctor, "check", lambda cluster_exists, builds: checked.append(builds))
    machine.has("docker", answer=docker(2, registry=True))
    machine.has("kind", "kubectl", "helm", "go", "gcc")
    kind.up()
    kind.down()
    assert checked == [False]
    made = [words for words in machine.used if words.startswith("kind ")]
    assert [words.split()[1] for words in made] == ["create", "delete"]
    assert "--image" not in made[0]
    assert {words.split()[0] for words in machine.used} == {"docker", "kind", "kubectl"}


def test_a_given_cluster_is_asked_and_nothing_is_built(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "config"
    given.touch()
    monkeypatch.setenv("STELE_KUBECONFIG", str(given))
    machine.has("kubectl", answer="echo node/a; echo node/b")
    machine.has("docker", "podman", "kind", "helm", "go")
    kind.up()
    assert machine.used == ["kubectl get nodes -o name"]
    assert "2 nodes; nothing is created" in capsys.readouterr().err


def test_a_given_cluster_without_tools_is_told_before_work_begins(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "config"
    given.touch()
    monkeypatch.setenv("STELE_KUBECONFIG", str(given))
    machine.has("kubectl")
    wanted = Settings(images="registry.example/team:1.0")
    with pytest.raises(PreflightError, match=r"helm must be on the PATH"):
        stage.check(wanted)
    machine.has("helm")
    stage.check(wanted)
    assert machine.used == []
