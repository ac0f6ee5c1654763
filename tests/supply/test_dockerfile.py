"""hadolint, which knows Dockerfiles and their shell commands, finds nothing in that of the images."""

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import images
from e2e.supply import locks, readers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hadolint is locked for Linux")


def checked(path: Path) -> "subprocess.CompletedProcess[str]":
    words = [str(readers.hadolint()), "--no-color", str(path)]
    return subprocess.run(words, cwd=locks.PROJECT, capture_output=True, text=True, check=False)


def test_the_dockerfile_has_no_errors_and_no_warnings() -> None:
    done = checked(images.DOCKERFILE)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("RUN sudo apt-get update", "DL3004"),
        ("RUN cd $(mktemp -d && ls", "SC1072"),
        ("COPY one two three", "DL3021"),
        ("COPYY one two", "missing whitespace"),
    ],
)
def test_a_wrong_line_is_found(line: str, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f"{images.DOCKERFILE.read_text()}{line}\n")
    done = checked(path)
    assert done.returncode != 0
    assert rule in done.stdout + done.stderr
