"""`images/docker-bake.json` builds the images of the Dockerfile, all of them and for both architectures."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import stele
from e2e.cluster import archive, images
from e2e.supply import chart, locks, readers
from tests import packages

FILE = locks.PROJECT / "images" / "docker-bake.json"
BAKE: dict[str, Any] = json.loads(FILE.read_text())
TARGETS: dict[str, Any] = BAKE["target"]
COMMON = TARGETS["image"]
BUILD_SECONDS_MAX = 1800  # buildx is built once, for a minute or two, or longer beside other tests
DOCKERFILE = images.DOCKERFILE.read_text()
STAGES = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
ARGUMENTS = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))


def test_there_is_a_target_for_each_image_and_each_is_built() -> None:
    names = {*images.NAMES, *images.ON_REQUEST}
    assert names == set(locks.IMAGES)
    assert set(TARGETS) == names | {"image"}
    assert set(BAKE["group"]["default"]["targets"]) == names
    for name in names:
        target = TARGETS[name]
        assert target["inherits"] == ["image"]
        assert target["args"] == {"EXTRA": name}
        assert name in STAGES
        assert target["tags"] == [f"${{REGISTRY}}/stele-{name}:${{TAG}}"]


def test_the_dockerfile_takes_every_argument() -> None:
    given = {name for target in TARGETS.values() for name in target["args"]}
    assert given == {"BASE", "APT_SOURCES", "EXTRA", "REVISION"}
    # The others only say to a build without a registry that something changed.
    assert ARGUMENTS - given == {"WHEELS_KEY", "CODE_KEY"}


def test_contexts_are_those_of_the_dockerfile() -> None:
    assert (locks.PROJECT / COMMON["context"] / COMMON["dockerfile"]).samefile(images.DOCKERFILE)
    copied = [
        word
        for words in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", DOCKERFILE, re.MULTILINE)
        for word in words.split()
    ]
    assert len(copied) > 5
    assert [each for each in copied if not (locks.PROJECT / COMMON["context"] / each).exists()] == []
    # What a build without a registry replaces is made by stages of the same name.
    assert {"wheels", "code"} <= STAGES
    assert not [name for name, target in TARGETS.items() if "contexts" in target]


def test_images_are_for_the_architectures_of_the_locks() -> None:
    wanted = [f"linux/{archive.ARCHITECTURES[each]}" for each in locks.ARCHITECTURES]
    assert COMMON["platforms"] == wanted == ["linux/amd64", "linux/arm64"]


def test_variables_are_declared_and_their_defaults_are_the_chart_s_and_the_dockerfile_s() -> None:
    defaults = {name: each["default"] for name, each in BAKE["variable"].items()}
    assert set(re.findall(r"\$\{(\w+)\}", FILE.read_text())) == set(defaults)
    assert defaults["TAG"] == stele.__version__
    assert f"ARG BASE={defaults['BASE']}\n" in DOCKERFILE
    assert f"ARG APT_SOURCES={defaults['APT_SOURCES']}\n" in DOCKERFILE


def _command() -> list[str]:
    """The words after `docker buildx` of the page that says how to build for both architectures."""
    page = (locks.PROJECT / "docs" / "operating" / "install.md").read_text()
    (words,) = re.findall(r"^ *docker buildx (bake .*)$", page, re.MULTILINE)
    return shlex.split(words)


def _printed(
    home: Path, *words: str, file: Path = FILE, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """What buildx says to the page's command, without a Docker."""
    packages.ensure_go()
    named = [str(file) if each.endswith(".json") else each for each in _command()]
    command = [str(readers.buildx()), *named, "--print", *words]
    env = {"HOME": str(home), "PATH": os.defpath, **variables}
    return subprocess.run(
        command, cwd=locks.PROJECT, env=env, capture_output=True, text=True, check=False, timeout=60
    )


def _targets(printed: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert printed.returncode == 0, printed.stderr
    found: dict[str, Any] = json.loads(printed.stdout)["target"]
    return found


@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_buildx_reads_what_the_page_says_for_every_image_and_both_architectures(tmp_path: Path) -> None:
    variables = {"REGISTRY": "registry.example.com/team", "TAG": "9.9.9", "REVISION": "abc"}
    found = _targets(_printed(tmp_path, BASE="debian:x", APT_SOURCES="deb x\ndeb y", **variables))
    assert set(found) == set(locks.IMAGES)
    for name, target in found.items():
        assert target["tags"] == [f"registry.example.com/team/stele-{name}:9.9.9"]
        assert target["platforms"] == ["linux/amd64", "linux/arm64"]
        given = {"BASE": "debian:x", "APT_SOURCES": "deb x\ndeb y", "REVISION": "abc"}
        assert target["args"] == {"EXTRA": name, **given}
        assert (target["context"], target["dockerfile"]) == (".", "images/Dockerfile")
        labels = {key.rpartition(".")[2]: text for key, text in target["labels"].items()}
        assert (labels["title"], labels["version"]) == (f"stele-{name}", "9.9.9")
        assert (labels["revision"], labels["licenses"]) == ("abc", "Apache-2.0")
        assert target["output"] == [{"type": "image", "push": "true"}]


@pytest.mark.timeout(BUILD_SECONDS_MAX)
@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
@pytest.mark.parametrize("name", locks.IMAGES)
def test_buildx_reads_one_image_for_one_architecture(name: str, architecture: str, tmp_path: Path) -> None:
    found = _targets(_printed(tmp_path, name, "--set", f"*.platform=linux/{architecture}"))
    assert set(found) == {name}
    assert found[name]["platforms"] == [f"linux/{architecture}"]
    # What is built without any variable is what the chart takes without any value.
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())["images"]
    key = next(key for image, key in chart.VALUES.items() if image == name)
    assert found[name]["tags"] == [f"{values[key]['repository']}:{stele.__version__}"]


@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_buildx_refuses_a_file_that_inherits_from_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(
        FILE.read_text().replace('"inherits": [\n        "image"', '"inherits": [\n        "imag"')
    )
    printed = _printed(tmp_path, file=file)
    assert printed.returncode != 0
    assert "failed to find target imag" in printed.stderr
