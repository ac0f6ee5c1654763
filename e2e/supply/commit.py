"""The commit that a release is made from: nothing but what is committed gets into it."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output
from e2e.supply.locks import PROJECT

VERSION_FILE = "operator/stele/__init__.py"
CHART_FILE = "charts/stele/Chart.yaml"
PARTS = ("LICENSE", "charts/stele", "images/locks", "native/Cargo.lock", "operator/stele")
"""What of a commit gets into a release, by path."""
CHANGES_SHOWN_MAX = 10
_PRE_RELEASE = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-{_PRE_RELEASE}(\.{_PRE_RELEASE})*)?", re.ASCII
)


@dataclass(frozen=True)
class Commit:
    """A commit of a clone; `epoch_seconds` is the time of the commit."""

    repository: Path
    name: str
    epoch_seconds: int

    @contextmanager
    def exported(self) -> Iterator[Path]:
        """A folder with PARTS as they are committed, while the block lasts."""
        with tempfile.TemporaryDirectory(prefix="stele-release-") as folder:
            archive = Path(folder) / "source.tar"
            _git(self.repository, "archive", "--format=tar", f"--output={archive}", self.name, "--", *PARTS)
            yield _unpacked(archive, Path(folder) / "source")


def head(repository: Path = PROJECT) -> Commit:
    """The commit that is checked out.

    Raises ClusterError when there is none, or when files differ from it: they would be left out of the
    release without a word.
    """
    try:
        name, seconds = _git(repository, "log", "-1", "--format=%H %ct").split()
    except ClusterError as error:
        raise ClusterError(
            f"{repository} is no clone with a commit, which a release is made of: {error}"
        ) from error
    changed = _git(repository, "status", "--porcelain").splitlines()
    if changed:
        shown = [line.strip() for line in changed[:CHANGES_SHOWN_MAX]]
        shown += [f"and {len(changed) - len(shown)} more"] if len(changed) > len(shown) else []
        raise ClusterError(
            f"{repository} has changes, and a release is made of the commit alone. "
            + "\n    ".join(["Commit or remove them:", *shown])
        )
    return Commit(repository, name, int(seconds))


def version(source: Path, asked: str | None = None) -> str:
    """The version of an exported commit.

    Raises ClusterError when it is no version, when the chart has another, or another one was `asked` for.
    """
    text = (source / VERSION_FILE).read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    own = found[1] if found else ""
    for name, value in (("--version", asked), (VERSION_FILE, own)):
        if value is not None and not _VERSION.fullmatch(value):
            raise ClusterError(
                f"{name} says {value!r}, expected MAJOR.MINOR.PATCH of Semantic Versioning, "
                "as 1.2.3 or 1.2.3-rc.1."
            )
    chart: dict[str, Any] = yaml.safe_load((source / CHART_FILE).read_text(encoding="utf-8"))
    said = {f"{CHART_FILE} (version)": chart["version"], f"{CHART_FILE} (appVersion)": chart["appVersion"]}
    for name, value in (said | ({} if asked is None else {"--version": asked})).items():
        if value != own:
            raise ClusterError(
                f"{name} is {value!r} and {VERSION_FILE} says {own!r}: a release is what its commit says. "
                f"Write the new version into {VERSION_FILE} and {CHART_FILE}, and commit them."
            )
    return own


def _git(repository: Path, *words: str) -> str:
    return output(["git", "-C", repository, *words])


def _unpacked(archive: Path, folder: Path) -> Path:
    """Unpack what git has packed; links are none of ours, and are left out."""
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                place = folder / member.name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())
                place.chmod(0o755 if member.mode & 0o100 else 0o644)
    return folder
