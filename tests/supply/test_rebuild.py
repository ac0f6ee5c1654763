"""What images are made from, built twice: the same content, at another time and from another folder."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from e2e.cluster import debian, images
from e2e.supply import locks, native
from tests.supply.test_install import install, recipe
from tests.supply.test_release import TICK_SECONDS, head_of_here

__all__ = ["recipe"]

UMASK = 0o022
"""That of each step of a build of images; wheels keep the modes that it gives."""


def exported(folder: Path) -> Path:
    """The sources of the project's own wheels as they are committed, with the times of a clone of today."""
    folder.mkdir(parents=True)
    words = ["git", "-C", str(locks.PROJECT), "archive", "--format=tar", head_of_here().name, "--"]
    words += ["pyproject.toml", "setup.py", "README.md", "operator", "native"]
    packed = folder / "packed.tar"
    packed.write_bytes(subprocess.check_output(words))
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "source", filter="data")
    packed.unlink()
    for path in (folder / "source").rglob("*"):
        os.utime(path)
    return folder / "source"


def wheels(source: Path, zone: str) -> dict[str, Path]:
    """Build by the script that makes images' wheels; the wheels by their names."""
    out = source.parent / "out"
    env = {**native.environment(), "TZ": zone, "CARGO_TARGET_DIR": str(source.parent / "target")}
    words = ["sh", str(images.GET), "code", sys.prefix, str(source), str(out)]
    done = subprocess.run(words, env=env, umask=UMASK, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: path for path in out.iterdir()}


def hashes(made: dict[str, Path]) -> dict[str, str]:
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in made.items()}


def test_the_wheel_of_the_project_is_the_same_from_another_folder_at_another_time(tmp_path: Path) -> None:
    """Nothing is compiled here: a module of one line stands for `native`."""
    made = []
    for number, zone in enumerate(("UTC", "Asia/Kathmandu")):
        source = exported(tmp_path / f"{number}")
        shutil.rmtree(source / "native")
        (source / "native").mkdir()
        about = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        about += '[project]\nname = "stele-native"\nversion = "1"\n[tool.setuptools]\npackages = []\n'
        (source / "native" / "pyproject.toml").write_text(about)
        made.append(wheels(source, zone))
        time.sleep(TICK_SECONDS * (1 - number))
    assert len(made[0]) == 2
    assert hashes(made[0]) == hashes(made[1])


@pytest.mark.long
def test_the_compiled_module_is_the_same_but_for_the_folder_that_its_materials_name(tmp_path: Path) -> None:
    """In images that folder is always the same one."""
    debian.ensure_packages(native.TOOLS)
    found = []
    for place in ("first", "other"):
        made = wheels(exported(tmp_path / place), "UTC")
        (wheel,) = (path for name, path in made.items() if name.startswith("stele_native-"))
        found.append(unpacked(wheel, folder=f"{tmp_path / place}/"))
    first, other = found
    assert first == other
    assert {name.rpartition(".")[2] for name in first} >= {"so", "json", "py"}


def unpacked(wheel: Path, folder: str) -> dict[str, tuple[object, bytes]]:
    """Time and content of each file, without this folder's name, and without the file that lists hashes."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            each.filename: (each.date_time, archive.read(each).replace(folder.encode(), b""))
            for each in archive.infolist()
            if not each.filename.endswith("/RECORD")
        }


def installed(made: Path) -> dict[str, tuple[int, str]]:
    """Mode and content of each file and link, but for what Python compiled."""
    found = {}
    for path in sorted(made.rglob("*")):
        if "__pycache__" not in path.parts and not path.is_dir():
            content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(made))] = (path.lstat().st_mode, hashlib.sha256(content).hexdigest())
    return found


def test_what_is_installed_into_an_image_twice_has_the_same_content(recipe: Path) -> None:
    found = []
    for _ in range(2):
        done = install(recipe)
        assert done.returncode == 0, done.stderr
        found.append(installed(recipe / "made"))
        shutil.rmtree(recipe / "made")
        time.sleep(TICK_SECONDS * (2 - len(found)))
    assert found[0] == found[1]
    assert any(name.endswith("/stele_probe.py") for name in found[0])
