"""`images/docker-bake.json` builds the images of the Dockerfile, all of them and for both architectures."""

import json
import os
import re
import subprocess
from typing import Any

import pytest

import stele
from e2e.cluster import archive, images
from e2e.supply import locks

FILE = locks.PROJECT / "images" / "docker-bake.json"
BAKE: dict[str, Any] = json.loads(FILE.read_text())
TARGETS: dict[str, Any] = BAKE["target"]
COMMON = TARGETS["image"]
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
    assert given == {"BASE", "APT_SOURCES", "EXTRA"}
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


def test_docker_understands_it() -> None:
    try:
        done = subprocess.run(["docker", "buildx", "version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no docker")
    if done.returncode != 0:
        pytest.skip("docker has no buildx")
    words = ["docker", "buildx", "bake", "--file", str(FILE.relative_to(locks.PROJECT)), "--print"]
    env = {**os.environ, "REGISTRY": "registry.example.com/team", "TAG": "9.9.9"}
    printed = subprocess.run(
        words, cwd=locks.PROJECT, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert printed.returncode == 0, printed.stderr
    found = json.loads(printed.stdout)["target"]
    assert set(found) == set(locks.IMAGES)
    for name, target in found.items():
        assert target["tags"] == [f"registry.example.com/team/stele-{name}:9.9.9"]
        assert target["platforms"] == COMMON["platforms"]
        assert target["args"]["EXTRA"] == name
        assert target["dockerfile"] == COMMON["dockerfile"]
