"""Upstream sources of Debian packages, fetched by apt, which checks Debian's signature and every hash."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from e2e.cluster import cache, debian
from e2e.cluster.rootfs import DEBIAN_SUITE
from e2e.cluster.steps import run, step

ARCHIVE = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
FETCH_SECONDS_MAX = 300.0


def ensure(package: str) -> Path:
    """The unpacked sources as their authors published them, of the version in DEBIAN_SUITE; cached."""
    key = f"{package}-{cache.hash_inputs(values=[DEBIAN_SUITE, ARCHIVE])}"
    return cache.entry("sources", key, lambda folder: _make(folder, package))


def _make(folder: Path, package: str) -> None:
    debian.ensure_packages({"debootstrap": debian.PACKAGES["debootstrap"]})  # It brings KEYRING.
    log = cache.root() / "logs" / f"sources-{package}.log"
    with step(f"fetch the sources of {package}"), TemporaryDirectory() as place:
        _fetch(Path(place), package, log)
        (archive,) = Path(place).glob("*.orig.tar.*")
        run(["tar", "-xf", archive, "-C", folder, "--strip-components=1", "--no-same-owner"], log)


def _fetch(place: Path, package: str, log: Path) -> None:
    """Download with lists of our own: those of the machine need not name sources, and stay as they are."""
    sources = place / "sources.list"
    sources.write_text(f"deb-src [signed-by={KEYRING}] {ARCHIVE} {DEBIAN_SUITE} main\n")
    for part in ("lists/partial", "cache/archives/partial"):
        (place / part).mkdir(parents=True)
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": place / "lists",
        "Dir::Cache": place / "cache",
        "APT::Sandbox::User": "root",  # Another user could not write into the folder.
    }
    apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    run([*apt, "update"], log, seconds_max=FETCH_SECONDS_MAX)
    run([*apt, "source", "--download-only", package], log, cwd=place, seconds_max=FETCH_SECONDS_MAX)
