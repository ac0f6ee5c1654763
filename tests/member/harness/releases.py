"""The source of the last release, to run its members and its operator beside those of this build.

`last_release.txt` names the release and its commit; a release writes its own there. The source comes from the
history of the checkout, once, into the cache outside it. It runs with the packages of this environment. In a
shallow clone that cannot fetch it tests fail with what to do: skipped, they would let a release go untested.
"""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from e2e.cluster.cache import root

LAST_RELEASE = Path(__file__).with_name("last_release.txt")
CHECKOUT = Path(__file__).resolve().parents[3]


def last_release() -> Path:
    """Return the root of the last release's modules. Raises AssertionError, with what to do, without it."""
    return _source() / "operator"


def last_release_crds() -> Path:
    """Return the folder of its custom resources."""
    return _source() / "crds"


def _source() -> Path:
    version, commit = LAST_RELEASE.read_text().split()
    folder = root() / "releases" / f"{version}-{commit}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as aside:
            source = Path(aside) / "source"
            source.mkdir()
            subprocess.run(["tar", "-x", "-C", str(source)], input=_archive(version, commit), check=True)
            try:
                source.rename(folder)
            except OSError:
                # Tests that run at the same time may all begin without it.
                assert folder.exists()
    return folder


def _archive(version: str, commit: str) -> bytes:
    archive = ("archive", "--format=tar", commit, "operator", "crds")
    done = _git(*archive)
    if done.returncode:
        # A shallow clone has only its last commits.
        _git("fetch", "--depth=1", "origin", commit)
        done = _git(*archive)
    assert done.returncode == 0, (
        f"release {version} is needed to test upgrades from it, and this checkout lacks its commit {commit}: "
        "use a clone with its history (git fetch --unshallow, or fetch-depth: 0 in CI); "
        f"git says: {done.stderr.decode(errors='replace').strip()}"
    )
    return done.stdout


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, check=False)
