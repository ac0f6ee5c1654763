"""What the recipes promise without being run: pins, names and lists that fit each other."""

import re
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

from e2e.cluster import archive, images, node_image, programs
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import run


def test_the_modules_are_pinned_to_the_versions_that_the_code_names() -> None:
    text = (programs.RECIPE / "k8s" / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{programs.KUBERNETES_VERSION}\n" in text
    for module in ("k8s", "tools", "coredns"):
        assert (programs.RECIPE / module / "go.sum").stat().st_size > 0


def test_the_needed_go_is_the_newest_that_a_module_asks_for() -> None:
    asked = [
        tuple(map(int, found.groups()))
        for path in programs.RECIPE.glob("*/go.mod")
        if (found := re.search(r"^go (\d+)\.(\d+)", path.read_text(), re.MULTILINE))
    ]
    assert max(asked) == programs.GO_VERSION_MIN


def test_the_one_program_of_kubernetes_knows_each_name_that_it_gets() -> None:
    source = (programs.RECIPE / "k8s" / "main.go").read_text()
    assert set(re.findall(r'^\t"([a-z-]+)": ', source, re.MULTILINE)) == set(programs.KUBERNETES.links)


def test_a_link_runs_the_program_by_its_own_name(tmp_path: Path) -> None:
    program = tmp_path / programs.KUBERNETES.programs[0]
    program.write_text('#!/bin/sh\necho "${0##*/} $1"\n')
    program.chmod(0o755)
    programs.link(tmp_path, ["kubectl"])
    said = subprocess.run([tmp_path / "kubectl", "get"], capture_output=True, text=True, check=True)
    assert said.stdout == "kubectl get\n"


def test_a_layer_has_the_links_beside_the_program(tmp_path: Path) -> None:
    program = tmp_path / "kubernetes"
    program.write_text("x")
    archive.Archive(tmp_path).layer_of_program(program, "usr/local/bin/kubernetes", ["kubelet"])
    with tarfile.open(tmp_path / "kubernetes.layer") as layer:
        assert layer.getnames() == ["usr/local/bin/kubernetes", "usr/local/bin/kubelet"]
        link = layer.extractfile("usr/local/bin/kubelet")
        assert link is not None
        assert link.read() == b"x"


@pytest.mark.parametrize("name", [*images.NAMES, *images.ON_REQUEST])
def test_each_image_is_a_stage_of_the_one_recipe(name: str) -> None:
    stages = images.DOCKERFILE.read_text().split("\nFROM ")
    (own,) = (stage for stage in stages if stage.partition("\n")[0].endswith(f" AS {name}"))
    assert "CMD [" in own
    assert (
        name
        in tomllib.loads((images.PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    )


def test_the_last_stage_adds_the_code_and_is_a_plain_user() -> None:
    text = images.DOCKERFILE.read_text()
    last = text.split("\nFROM ")[-1]
    assert last.startswith("${EXTRA}\n")
    assert last.index("ARG CODE_KEY") < last.index("RUN") < last.index("USER 10001:10001")
    assert text.count('"/usr/bin/tini"') == text.count("ENTRYPOINT") == 2


def test_a_go_constant_is_read_with_its_variables_replaced() -> None:
    source = "package x\n\nconst manifest = `\nimage: ` + imageName + `\n`\n"
    assert node_image.go_constant(source, "manifest", {"imageName": "local:1"}) == "\nimage: local:1\n"


def test_an_unknown_variable_in_a_go_constant_is_refused() -> None:
    with pytest.raises(ClusterError, match="does not know"):
        node_image.go_constant("const manifest = `a ` + other + ` b`\n", "manifest", {})


def test_a_layer_does_not_depend_on_times(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "f").write_text("x")
    first = archive.Archive(tmp_path).layer_of_folder(folder).digest
    subprocess.run(["touch", "-d", "2001-01-01", folder / "f"], check=True)
    assert archive.Archive(tmp_path).layer_of_folder(folder).digest == first


def test_a_failed_step_names_its_log_and_shows_the_end(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    with pytest.raises(ClusterError) as failure:
        run(["sh", "-c", "echo what went wrong; exit 3"], log)
    assert str(log) in str(failure.value)
    assert "what went wrong" in str(failure.value)
    assert "exit code 3" in str(failure.value)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="'no-such-program' is not installed"):
        run(["no-such-program"], tmp_path / "log")
