"""`kubectl stele` as one file: a zip that Python runs, with the wheels of the lock `cli` in it.

There is one for each system and architecture, because some wheels are compiled. It has the wheels for all of
PLUGIN_PYTHONS, so it runs with the Python that a machine has; plugin_start.py chooses. krew installs it out
of an archive, by the manifest that is made here.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import cache
from e2e.cluster.archive import ARCHITECTURES
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import run
from e2e.supply import archives, locks, plugin_start
from e2e.supply.archives import Entry

NAME = "kubectl-stele"
COMPLETION = "kubectl_complete-stele"
START = Path(plugin_start.__file__)
GO_NAMES = {**ARCHITECTURES, "arm64": "arm64"}
"""What krew, and people who download, call a machine."""
KEY_LETTERS = 16
DOWNLOAD_SECONDS_MAX = 900.0
_SHEBANG = b"#!/usr/bin/env python3\n"

Platform = tuple[str, str]
"""A system and a machine, as Python names them."""


def archive_name(version: str, platform: Platform) -> str:
    """The name of the file that people download."""
    return f"{NAME}_{version}_{platform[0]}_{GO_NAMES[platform[1]]}.tar.gz"


def download(platform: Platform, folder: Path, lock: Path) -> dict[str, list[Path]]:
    """Get the wheels for a platform into `folder`, each checked against the lock; by version of Python."""
    found: dict[str, list[Path]] = {}
    for target in locks.targets(locks.PLUGIN):
        if (target.system, target.machine) == platform:
            python = ".".join(map(str, target.python))
            place = folder / python
            words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            words += [*target.options, "--require-hashes", "-r", str(lock), "--dest", str(place)]
            log = cache.root() / "logs" / "plugin.log"
            run(words, log, seconds_max=DOWNLOAD_SECONDS_MAX)
            found[python] = sorted(place.glob("*.whl"))
    return found


def one_file(
    platform: Platform, wheels: Mapping[str, Sequence[Path]], source: Path, epoch_seconds: int
) -> bytes:
    """The program: `wheels` by version of Python, and the modules below `source`/stele."""
    code = archives.entries_below(source / "stele", f"{plugin_start.CODE}stele")
    each = {path.name: path for paths in wheels.values() for path in paths}
    parts = [*code, *(Entry(plugin_start.WHEELS + name, each[name].read_bytes()) for name in sorted(each))]
    contents = {
        "key": _key(parts),
        "system": platform[0],
        "machine": platform[1],
        "pythons": {python: [path.name for path in paths] for python, paths in wheels.items()},
    }
    start = Entry("__main__.py", START.read_bytes())
    about = Entry(plugin_start.CONTENTS, json.dumps(contents, indent=1, sort_keys=True).encode())
    return _SHEBANG + archives.zipped([start, about, *parts], epoch_seconds)


def _key(parts: Iterable[Entry]) -> str:
    """Names the folder into which this is unpacked: another content has another one."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part.name)} {len(part.content)} {part.name}".encode())
        digest.update(part.content)
    return digest.hexdigest()[:KEY_LETTERS]


def packed(program: bytes, licence: bytes, epoch_seconds: int) -> bytes:
    """The archive that krew takes: the program and the licence."""
    entries = [Entry("LICENSE", licence), Entry(NAME, program, executable=True)]
    return archives.tar_gz(entries, epoch_seconds)


def write(platform: Platform, version: str, source: Path, epoch_seconds: int, out: Path) -> Path:
    """Make the archive for one platform in the folder `out`, of an exported commit; its path."""
    with tempfile.TemporaryDirectory(prefix="stele-plugin-") as folder:
        wheels = download(platform, Path(folder), locks.files(locks.PLUGIN, source / "images" / "locks")[0])
        program = one_file(platform, wheels, source / "operator", epoch_seconds)
    path = out / archive_name(version, platform)
    path.write_bytes(packed(program, (source / "LICENSE").read_bytes(), epoch_seconds))
    return path


def krew_manifest(version: str, sums: Mapping[Platform, str], url: str) -> str:
    """The text of krew's manifest; `sums` are the SHA-256 of the archives, `url` the folder they are in."""
    found: dict[str, Any] = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "stele"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Inspect and manage clusters of Stele",
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": [_krew_platform(version, *each, url) for each in sums.items()],
        },
    }
    text: str = yaml.safe_dump(found, sort_keys=False, width=100)
    return text


def _krew_platform(version: str, platform: Platform, sha256: str, url: str) -> dict[str, Any]:
    name = archive_name(version, platform)
    return {
        "selector": {"matchLabels": {"os": platform[0], "arch": GO_NAMES[platform[1]]}},
        "uri": f"{url.rstrip('/')}/{name}" if url else name,
        "sha256": sha256,
        "files": [{"from": each, "to": "."} for each in (NAME, "LICENSE")],
        "bin": NAME,
    }


_PYTHONS = ", ".join(".".join(map(str, each)) for each in locks.PLUGIN_PYTHONS)
_DESCRIPTION = """\
Shows the members, partitions and plans of Stele, a partitioned, replicated key-value store on
Kubernetes, says why they are as they are, and changes them.
"""
_CAVEATS = f"""\
It needs python3 on the PATH: one of {_PYTHONS}. For completion in the shell, link
{COMPLETION} to it:
  ln -s "$(command -v {NAME})" ~/.local/bin/{COMPLETION}
"""


def platform_of(word: str) -> Platform:
    """A platform by its name in files, as linux_amd64. Raises ClusterError for one that is not built."""
    known = {f"{system}_{GO_NAMES[machine]}": (system, machine) for system, machine in locks.PLUGIN_PLATFORMS}
    if word not in known:
        raise ClusterError(f"--platform is {word!r}, expected one of {', '.join(known)}.")
    return known[word]
