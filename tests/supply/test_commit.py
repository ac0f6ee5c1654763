"""A release has what is committed, and nothing is released that is not."""

import re
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.supply import commit

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
FILES = {
    "LICENSE": "free",
    "README.md": "not released",
    commit.VERSION_FILE: '"""Stele."""\n\n__version__ = "1.2.3"\n',
    commit.CHART_FILE: 'version: 1.2.3\nappVersion: "1.2.3"\n',
    "images/locks/cli.txt": "",
    "native/Cargo.lock": "",
}


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *AUTHOR, *words], check=True, capture_output=True)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    write(folder, FILES)
    (folder / "LICENSE").chmod(0o755)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "all", "--date=2026-01-01T00:00:00Z")
    return folder


def test_what_is_exported_is_what_is_committed(clone: Path) -> None:
    head = commit.head(clone)
    (clone / "LICENSE").write_text("changed later")
    write(clone, {"operator/stele/secret.py": "not committed"})
    with head.exported() as source:
        found = {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}
        assert set(found) == set(FILES) - {"README.md"}
        assert found["LICENSE"].read_text() == "free"
        assert [name for name, path in found.items() if path.stat().st_mode & 0o100] == ["LICENSE"]
        assert commit.version(source) == commit.version(source, "1.2.3") == "1.2.3"
    assert not source.exists()


def test_a_commit_has_its_name_and_its_time(clone: Path) -> None:
    head = commit.head(clone)
    said = subprocess.check_output(["git", "-C", str(clone), "show", "-s", "--format=%H %ct"], text=True)
    assert said.split() == [head.name, str(head.epoch_seconds)]


@pytest.mark.parametrize("name", ["LICENSE", "new"])
def test_a_clone_with_changes_is_refused_with_their_names(clone: Path, name: str) -> None:
    (clone / name).write_text("changed")
    with pytest.raises(ClusterError, match=rf"{clone} has changes.*\n.* {name}$"):
        commit.head(clone)


def test_of_many_changes_the_first_are_named(clone: Path) -> None:
    write(clone, {f"new{number:02}": "" for number in range(commit.CHANGES_SHOWN_MAX + 2)})
    with pytest.raises(ClusterError, match=r"new09\n    and 2 more$"):
        commit.head(clone)


def test_a_folder_without_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is no clone with a commit"):
        commit.head(tmp_path)


@pytest.mark.parametrize(
    ("file", "change", "asked", "text"),
    [
        (commit.VERSION_FILE, ("1.2.3", "1.2"), None, "says '1.2', expected MAJOR.MINOR.PATCH"),
        (commit.VERSION_FILE, ("1.2.3", "01.2.3"), None, "says '01.2.3', expected MAJOR.MINOR.PATCH"),
        (commit.VERSION_FILE, ("__version__", "version"), None, "says '', expected"),
        (commit.CHART_FILE, ("version: 1.2.3", "version: 1.2.4"), None, "(version) is '1.2.4' and operator"),
        (commit.CHART_FILE, ('"1.2.3"', '"1.2.4"'), None, "(appVersion) is '1.2.4' and operator"),
        ("LICENSE", ("", ""), "v1.2.3", "--version says 'v1.2.3', expected MAJOR.MINOR.PATCH"),
        ("LICENSE", ("", ""), "1.2.3+build", "--version says '1.2.3+build', expected"),
        ("LICENSE", ("", ""), "1.3.0-rc.1", "--version is '1.3.0-rc.1' and operator/stele/__init__.py says"),
    ],
)
def test_versions_that_do_not_fit_are_refused(
    tmp_path: Path, file: str, change: tuple[str, str], asked: str | None, text: str
) -> None:
    write(tmp_path, FILES | {file: FILES[file].replace(*change)})
    with pytest.raises(ClusterError, match=re.escape(text)):
        commit.version(tmp_path, asked)
