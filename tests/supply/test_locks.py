"""The committed locks: they fit pyproject.toml, name no server, and say nothing but pins with hashes."""

import re
from pathlib import Path
from platform import machine

import pytest
from packaging import tags
from packaging.requirements import Requirement

from e2e.cluster.errors import ClusterError
from e2e.supply import locks

PIN = locks.Pin("kopf", "1.45.2", ("a" * 64, "b" * 64))


@pytest.mark.parametrize("name", locks.NAMES)
def test_a_lock_is_what_pyproject_asks_for(name: str) -> None:
    lock = locks.read(name)
    assert lock.asked == locks.requirements(name), "pyproject.toml was changed: run `make locks`"
    versions = {pin.name: pin.version for pin in lock.pins}
    for asked in map(Requirement, lock.asked):
        assert versions[asked.name] in asked.specifier
    assert len(versions) == len(lock.pins)


@pytest.mark.parametrize("name", locks.NAMES)
def test_only_pyspark_comes_as_source(name: str) -> None:
    wanted = ["pyspark"] if name in ("spark", "sql") else []
    assert [pin.name for pin in locks.read(name).sources] == wanted


def test_images_have_the_same_version_of_what_they_share_and_the_plugin_too() -> None:
    pins = {pin for name in (*locks.IMAGES, locks.BUILD) for pin in locks.read(name).pins}
    assert len({pin.name for pin in pins}) == len(pins)
    versions = {(pin.name, pin.version) for pin in (*pins, *locks.read(locks.PLUGIN).pins)}
    assert len({name for name, _ in versions}) == len(versions)


def test_compiled_wheels_are_locked_for_both_architectures() -> None:
    (rocksdict,) = (pin for pin in locks.read("member").pins if pin.name == "rocksdict")
    assert len(rocksdict.hashes) == len(locks.ARCHITECTURES)


def test_the_wheel_is_locked_that_pip_takes_in_an_image() -> None:
    (target,) = (each for each in locks.targets("member") if each.machine == machine())
    asked = target.options
    platforms = [each.removeprefix("--platform=") for each in asked if each.startswith("--platform=")]
    taken = list(tags.platform_tags())
    assert platforms[0] == f"manylinux_2_36_{machine()}"
    assert [tag for tag in taken if tag in platforms] == [tag for tag in platforms if tag in taken]


def test_the_plugin_is_locked_for_each_python_and_each_platform() -> None:
    pins = {pin.name: pin for pin in locks.read(locks.PLUGIN).pins}
    targets = locks.targets(locks.PLUGIN)
    assert len(targets) == len(locks.PLUGIN_PYTHONS) * len(locks.PLUGIN_PLATFORMS)
    assert len(pins["pydantic-core"].hashes) == len(targets)
    assert all(len(pin.hashes) <= len(targets) for pin in pins.values())
    assert "rocksdict" not in pins


def test_no_lock_names_a_server() -> None:
    for path in locks.FOLDER.iterdir():
        assert not re.search(r"//|-index|--find-links", path.read_text()), path


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    lock = locks.Lock(("kopf>=1", "pyspark==4.3.0"), (PIN,), (locks.Pin("pyspark", "4.3.0", ("c" * 64,)),))
    locks.write("spark", lock, tmp_path)
    assert locks.read("spark", tmp_path) == lock
    without = locks.Lock(("kopf>=1",), (PIN,), ())
    locks.write("spark", without, tmp_path)
    assert locks.read("spark", tmp_path) == without


@pytest.mark.parametrize(
    "line",
    ["idna==3.20", "idna>=3 \\\n    --hash=sha256:" + "a" * 64, "--no-require-hashes", "-r other.txt"],
)
def test_a_line_that_is_no_pin_with_hashes_is_refused(tmp_path: Path, line: str) -> None:
    locks.write("member", locks.Lock(("kopf>=1",), (PIN,), ()), tmp_path)
    with (tmp_path / "member.txt").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ClusterError, match="no pins with hashes"):
        locks.read("member", tmp_path)
