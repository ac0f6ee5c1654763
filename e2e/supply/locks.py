"""Locks: the version of each distribution that an image installs, and the hashes of its files.

`images/locks/NAME.txt` has those that come as wheels, `NAME.source.txt` those that only come as source. They
are files of requirements, because pip installs from them with `--require-hashes`, and because they name no
server: whoever builds takes the files from an index, or a mirror, of their own.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.doctor import IMAGE_PYTHON, python_problems
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output, step

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "images" / "locks"
IMAGES = ("operator", "member", "spark", "sql")
PLUGIN = "cli"
"""What `kubectl-stele` as one file has in it."""
BUILD = "build"
"""What builds: pip, mypy for its compiler, and the backends of the project and of what comes as source."""
LINT = "lint"
"""What checks the images' Dockerfile; no image has it."""
NAMES = (*IMAGES, PLUGIN, BUILD, LINT)
ARCHITECTURES = ("x86_64", "aarch64")
PLUGIN_PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
PLUGIN_PLATFORMS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "x86_64"), ("darwin", "arm64"))
GLIBC_OF_IMAGES, GLIBC_OF_PEOPLE = 36, 28  # that of the images' Debian 12; that of RHEL 8
GLIBC_MIN = 17  # manylinux_2_17 (2014)
MACOS_MIN = "12_0"
RESOLVE_SECONDS_MAX = 900.0
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
_ASKED = "# Asked for: "


@dataclass(frozen=True)
class Pin:
    """One version of a distribution; SHA-256 of each file of it that may be installed, sorted."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The requirement as pip reads it."""
        return " \\\n    ".join(
            [f"{self.name}=={self.version}", *(f"--hash=sha256:{h}" for h in self.hashes)]
        )


@dataclass(frozen=True)
class Lock:
    """What one image installs, and what pyproject.toml asked for when that was resolved."""

    asked: tuple[str, ...]
    wheels: tuple[Pin, ...]
    sources: tuple[Pin, ...]

    @property
    def pins(self) -> tuple[Pin, ...]:
        """All of them, by name."""
        return tuple(sorted((*self.wheels, *self.sources), key=lambda pin: pin.name))


@dataclass(frozen=True)
class Target:
    """A kind of machine that wheels are chosen for: `system` and `machine` as Python names them."""

    system: str
    machine: str
    python: tuple[int, int]
    glibc_minor: int = GLIBC_OF_PEOPLE

    @property
    def options(self) -> list[str]:
        """What makes pip choose for this machine in place of its own; the first platform is preferred."""
        python = "".join(map(str, self.python))
        options = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
        options += [f"--abi={abi}" for abi in (f"cp{python}", "abi3", "none")]
        return [*options, *(f"--platform={platform}" for platform in self._platforms())]

    def _platforms(self) -> Iterator[str]:
        if self.system == "darwin":
            yield f"macosx_{MACOS_MIN}_{self.machine}"  # pip adds the older ones
            return
        for minor in range(self.glibc_minor, GLIBC_MIN - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
        yield f"manylinux2014_{self.machine}"


def targets(name: str) -> tuple[Target, ...]:
    """The machines that a lock has wheels for."""
    if name == PLUGIN:
        return tuple(Target(*each, python) for each in PLUGIN_PLATFORMS for python in PLUGIN_PYTHONS)
    return tuple(Target("linux", each, IMAGE_PYTHON, GLIBC_OF_IMAGES) for each in ARCHITECTURES)


def requirements(name: str) -> tuple[str, ...]:
    """What pyproject.toml asks for one lock, sorted: an extra, or what builds or checks."""
    pyproject = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    if name == BUILD:
        native = tomllib.loads((PROJECT / "native" / "pyproject.toml").read_text(encoding="utf-8"))
        backends = (*pyproject["build-system"]["requires"], *native["build-system"]["requires"])
        return tuple(sorted([*backends, *pyproject["dependency-groups"]["compile"], "pip>=25.1"]))
    if name == LINT:
        return tuple(sorted(pyproject["dependency-groups"][name]))
    return tuple(sorted([*project["dependencies"], *project["optional-dependencies"][name]]))


def files(name: str, folder: Path = FOLDER) -> tuple[Path, Path]:
    """Where the wheels and the sources of a lock are written; the second only exists if there are any."""
    return folder / f"{name}.txt", folder / f"{name}.source.txt"


def read(name: str, folder: Path = FOLDER) -> Lock:
    """The committed lock. Raises ClusterError when a file says something else than pins with hashes."""
    wheels, sources = files(name, folder)
    asked, found = _parsed(wheels)
    return Lock(asked, found, _parsed(sources)[1] if sources.exists() else ())


def write(name: str, lock: Lock, folder: Path = FOLDER) -> None:
    """Replace the files of a lock."""
    for path, pins, kind in zip(
        files(name, folder), (lock.wheels, lock.sources), ("wheels", "source"), strict=True
    ):
        path.unlink(missing_ok=True)
        if pins or kind == "wheels":
            head = f"# `{name}`, what comes as {kind}. Written by `make locks`.\n"
            head += f"{_ASKED}{', '.join(lock.asked)}\n"
            path.write_text(head + "".join(f"{pin.text}\n" for pin in pins), encoding="utf-8")


def _parsed(path: Path) -> tuple[tuple[str, ...], tuple[Pin, ...]]:
    text = path.read_text(encoding="utf-8")
    heads = [line for line in text.splitlines() if line.startswith("#")]
    pins = tuple(
        Pin(name, version, tuple(re.findall(r"sha256:([0-9a-f]{64})", hashes)))
        for name, version, hashes in _PIN.findall(text)
    )
    asked = tuple(w for h in heads if h.startswith(_ASKED) for w in h.removeprefix(_ASKED).split(", "))
    if "\n".join([*heads, *(pin.text for pin in pins), ""]) != text:
        raise ClusterError(f"{path} has lines that are no pins with hashes; write it anew with `make locks`.")
    return asked, pins


def resolve(name: str) -> Lock:
    """Ask the package index for the newest versions that pyproject.toml allows, and for their hashes.

    pip resolves for this machine and the images' Python; hashes are of the wheels for all of `targets`.
    """
    if found := python_problems(sys.version_info[:2]):
        raise ClusterError(found[0])
    with step(
        f"lock {name}", "a minute: PySpark is an archive of 456 MB" if name in ("spark", "sql") else ""
    ):
        asked = requirements(name)
        chosen = _report(["--ignore-installed", *asked])
        sources = {n: version for n, version, file, _ in chosen if not file.endswith(".whl")}
        wheels = {n: version for n, version, _, _ in chosen if n not in sources}
        hashes = {n: {digest} for n, _, _, digest in chosen if n in sources}
        for target in targets(name):
            for n, _, _, digest in _wheels_for(target, wheels):
                hashes.setdefault(n, set()).add(digest)
    return Lock(asked, _pins(wheels, hashes), _pins(sources, hashes))


def _pins(versions: Mapping[str, str], hashes: Mapping[str, Iterable[str]]) -> tuple[Pin, ...]:
    return tuple(Pin(name, versions[name], tuple(sorted(hashes[name]))) for name in sorted(versions))


def _wheels_for(target: Target, versions: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    # The first that fits is taken, as pip does on that machine: for images the one for the newest glibc.
    with tempfile.TemporaryDirectory(prefix="stele-lock-") as nowhere:
        options = [*target.options, f"--target={nowhere}"]
        return _report([*options, *(f"{name}=={version}" for name, version in versions.items())])


def _report(arguments: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """What pip would install: normalized name, version, name of the file, its SHA-256."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report=-", *arguments]
    found: list[dict[str, Any]] = json.loads(output(command, seconds_max=RESOLVE_SECONDS_MAX))["install"]
    return [
        (
            re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(),
            item["metadata"]["version"],
            item["download_info"]["url"].rsplit("/", 1)[1],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for item in found
    ]
