"""krew itself installs `kubectl stele` by the manifest and the archive of a release, without a network."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stele
from e2e.cluster import programs
from e2e.supply import archives, locks, plugin, readers
from tests import packages

BUILD_SECONDS_MAX = 900
EPOCH_SECONDS = 1_790_000_001
HERE = (sys.platform, platform.machine())
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
VERSION = stele.__version__

pytestmark = [
    pytest.mark.timeout(BUILD_SECONDS_MAX),
    pytest.mark.skipif(HERE not in locks.PLUGIN_PLATFORMS, reason="the plugin is not made for this machine"),
]


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder with the archive and the manifest. The wheels are those of this interpreter's environment."""
    folder = tmp_path / "dist"
    folder.mkdir()
    program = plugin.one_file(HERE, {PYTHON: []}, locks.PROJECT / "operator", EPOCH_SECONDS)
    archive = folder / plugin.archive_name(VERSION, HERE)
    archive.write_bytes(plugin.packed(program, (locks.PROJECT / "LICENSE").read_bytes(), EPOCH_SECONDS))
    sums = dict.fromkeys(locks.PLUGIN_PLATFORMS, archives.sha256(archive))
    (folder / "stele.yaml").write_text(plugin.krew_manifest(VERSION, sums, "https://example.invalid/v1"))
    return folder


def run(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command of a person who has krew and whose servers cannot be reached."""
    path = [str(root / "bin"), str(readers.krew().parent), str(Path(sys.executable).parent), os.defpath]
    if programs.built():
        path.append(str(programs.ensure()))
    env = {
        "HOME": str(root.parent),
        "KREW_ROOT": str(root),
        "KREW_NO_UPGRADE_CHECK": "1",
        "PATH": os.pathsep.join(path),
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    if words[0] == "kubectl" and shutil.which("kubectl", path=env["PATH"]) is None:
        words = (f"kubectl-{words[1]}", *words[2:])  # What kubectl does.
    found = shutil.which(words[0], path=env["PATH"])
    assert found is not None, words
    return subprocess.run(
        [found, *words[1:]], env=env, capture_output=True, text=True, check=False, timeout=120
    )


def installed(root: Path, dist: Path) -> "subprocess.CompletedProcess[str]":
    packages.ensure_go()
    archive = dist / plugin.archive_name(VERSION, HERE)
    return run(
        root, "kubectl", "krew", "install", f"--manifest={dist / 'stele.yaml'}", f"--archive={archive}"
    )


def test_krew_installs_the_plugin_and_it_runs(tmp_path: Path, dist: Path) -> None:
    root = tmp_path / "krew"
    done = installed(root, dist)
    assert done.returncode == 0, done.stderr
    assert "Installed plugin: stele" in done.stderr
    assert "It needs python3 on the PATH" in done.stderr
    assert (root / "bin" / plugin.NAME).resolve().is_relative_to(root / "store" / "stele" / f"v{VERSION}")
    assert {each.name for each in (root / "store" / "stele" / f"v{VERSION}").iterdir()} == {
        plugin.NAME,
        "LICENSE",
    }
    for words, text in ((["version"], VERSION), (["--help"], "rollout")):
        said = run(root, "kubectl", "stele", *words)
        assert said.returncode == 0, said.stderr
        assert text in said.stdout
    # It was that program, and not the one of this environment.
    assert list((tmp_path / ".cache" / "kubectl-stele").iterdir())
    assert [each.name for each in (root / "receipts").iterdir()] == ["stele.yaml"]


def test_krew_refuses_an_archive_with_another_sum(tmp_path: Path, dist: Path) -> None:
    with (dist / plugin.archive_name(VERSION, HERE)).open("ab") as archive:
        archive.write(b"x")
    done = installed(tmp_path / "krew", dist)
    assert done.returncode != 0
    assert "checksum does not match" in done.stderr
