"""`kubectl-stele` as one file: it runs by itself, only where it can, and is what the lock says."""

import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from e2e.cluster.errors import ClusterError
from e2e.supply import locks, plugin, plugin_start
from e2e.supply.archives import Entry, zipped

EPOCH_SECONDS = 1_790_000_001
HERE = (sys.platform, platform.machine())
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
MAIN = """\
import os, subprocess, sys
import needed
def main():
    print("main", needed.NAME, *sys.argv[1:])
    if "child" in sys.argv:
        return subprocess.call([sys.executable, "-c", "import stele; print('child')"])
    return 3
"""
COMPLETION = "import sys\ndef main():\n    print('completes', *sys.argv[1:])\n    return 0\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A package that stands for Stele."""
    folder = tmp_path / "operator"
    cli = folder / "stele" / "cli"
    cli.mkdir(parents=True)
    for place, text in ((cli.parent / "__init__.py", ""), (cli / "__init__.py", ""), (cli / "main.py", MAIN)):
        place.write_text(text)
    (cli / "completion.py").write_text(COMPLETION)
    return folder


def wheel(folder: Path, name: str) -> Path:
    """A wheel with the module `needed`, which says its own name."""
    path = folder / name
    path.write_bytes(zipped([Entry("needed.py", f"NAME = {name!r}\n".encode())], EPOCH_SECONDS))
    return path


def made(source: Path, platform_: plugin.Platform = HERE, python: str = PYTHON) -> Path:
    wheels = {
        python: [wheel(source.parent, f"needed-{python}.whl")],
        "3.99": [wheel(source.parent, "other.whl")],
    }
    path = source.parent / plugin.NAME
    path.write_bytes(plugin.one_file(platform_, wheels, source, EPOCH_SECONDS))
    path.chmod(0o755)
    return path


def run(path: Path, *words: str, home: Path | None = None) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(home or path.parent)}
    return subprocess.run([str(path), *words], env=env, capture_output=True, text=True, check=False)


def test_the_file_runs_with_the_wheels_for_this_python(source: Path) -> None:
    done = run(made(source), "status", "demo")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == f"main needed-{PYTHON}.whl status demo\n"
    (folder,) = (source.parent / ".cache" / "kubectl-stele").iterdir()
    assert {each.name for each in folder.iterdir()} - {"__pycache__"} == {"needed.py", "stele"}


def test_it_unpacks_once_and_again_when_its_content_changed(source: Path) -> None:
    path = made(source)
    run(path)
    cache = source.parent / ".cache" / "kubectl-stele"
    (folder,) = cache.iterdir()
    (folder / "needed.py").write_text("NAME = 'kept'\n")
    assert "main kept" in run(path).stdout
    (source / "stele" / "cli" / "main.py").write_text("def main():\n    print('newer')\n")
    assert run(made(source)).stdout == "newer\n"
    assert len(list(cache.iterdir())) == 2


def test_processes_that_it_starts_have_its_modules(source: Path) -> None:
    assert "child" in run(made(source), "child").stdout.splitlines()


def test_by_another_name_it_completes(source: Path) -> None:
    path = made(source)
    link = source.parent / plugin.COMPLETION
    link.symlink_to(path)
    assert run(link, "sta").stdout == "completes sta\n"


def test_another_machine_or_python_is_refused_with_what_to_do(source: Path) -> None:
    done = run(made(source, ("plan9", "mips")))
    assert done.returncode == 2
    assert f"this file is for plan9 on mips, and this machine is {HERE[0]} on {HERE[1]}" in done.stderr
    done = run(made(source, python="3.98"))
    assert done.returncode == 2
    assert f"it runs with Python 3.98, 3.99, and this is Python {PYTHON}" in done.stderr
    assert not (source.parent / ".cache").exists()


def test_a_home_that_cannot_be_written_is_named(source: Path) -> None:
    (source.parent / "file").write_text("")
    done = run(made(source), home=source.parent / "file")
    assert done.returncode == 1
    assert "could not unpack into" in done.stderr
    assert "XDG_CACHE_HOME" in done.stderr


def test_of_two_that_unpack_at_once_one_wins(source: Path, tmp_path: Path) -> None:
    aside, place = tmp_path / "aside", tmp_path / "place"
    for folder in (aside, place):
        folder.mkdir()
        (folder / "x").write_text(folder.name)
    plugin_start._rename(str(aside), str(place))
    assert (place / "x").read_text() == "place"
    with pytest.raises(OSError, match="nowhere"):
        plugin_start._rename(str(tmp_path / "nowhere"), str(tmp_path / "new"))


def test_what_it_runs_first_needs_nothing_but_python() -> None:
    words = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        "import sys; sys.path.insert(0, sys.argv[1]); import plugin_start",
    ]
    subprocess.run([*words, str(plugin.START.parent)], check=True)


def test_the_same_content_is_the_same_file(source: Path) -> None:
    first = made(source).read_bytes()
    for path in source.rglob("*"):
        os.utime(path, (0, 0))
    assert made(source).read_bytes() == first
    assert zipfile.ZipFile(io.BytesIO(first)).namelist()[0] == "__main__.py"


def test_krew_finds_in_each_archive_what_its_manifest_names() -> None:
    packed = plugin.packed(b"program", b"licence", EPOCH_SECONDS)
    sums = dict.fromkeys(locks.PLUGIN_PLATFORMS, hashlib.sha256(packed).hexdigest())
    found = yaml.safe_load(plugin.krew_manifest("1.2.3", sums, "https://example.com/v1.2.3/"))
    assert (found["kind"], found["metadata"]) == ("Plugin", {"name": "stele"})
    assert found["spec"]["version"] == "v1.2.3"
    assert [each["selector"]["matchLabels"] for each in found["spec"]["platforms"]] == [
        {"os": "linux", "arch": "amd64"},
        {"os": "linux", "arch": "arm64"},
        {"os": "darwin", "arch": "amd64"},
        {"os": "darwin", "arch": "arm64"},
    ]
    first = found["spec"]["platforms"][0]
    assert first["uri"] == "https://example.com/v1.2.3/kubectl-stele_1.2.3_linux_amd64.tar.gz"
    assert first["sha256"] == hashlib.sha256(packed).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        modes = {each.name: each.mode for each in archive}
    assert {each["from"] for each in first["files"]} == set(modes)
    assert modes[first["bin"]] == 0o755


def test_without_a_url_the_manifest_is_for_an_archive_on_disk() -> None:
    found = yaml.safe_load(plugin.krew_manifest("1.2.3", {("linux", "x86_64"): "0" * 64}, ""))
    (only,) = found["spec"]["platforms"]
    assert only["uri"] == "kubectl-stele_1.2.3_linux_amd64.tar.gz"


def test_a_platform_that_is_not_built_is_refused() -> None:
    names = ("linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64")
    assert tuple(map(plugin.platform_of, names)) == locks.PLUGIN_PLATFORMS
    with pytest.raises(ClusterError, match="--platform is 'windows_amd64', expected one of linux_amd64"):
        plugin.platform_of("windows_amd64")
