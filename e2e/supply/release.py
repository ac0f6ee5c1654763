"""Everything that a release consists of, in one folder: the same commit gives the same bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import step
from e2e.supply import archives, chart, locks, manifest, plugin, sbom
from e2e.supply.commit import Commit, version

SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Options:
    """What the commit does not say: where its images and files will be found."""

    images: Mapping[str, str] = field(default_factory=dict)
    registry: str = ""
    url: str = ""
    platforms: Sequence[plugin.Platform] = locks.PLUGIN_PLATFORMS
    version: str | None = None


def write(out: Path, commit: Commit, options: Options) -> None:
    """Make the folder `out`, which must not exist; when that fails, there is none.

    Raises ClusterError, which says what to do.
    """
    if out.exists():
        raise ClusterError(f"{out} exists; remove it, or name another folder with --out.")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with (
        commit.exported() as source,
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.absolute().parent) as making,
    ):
        folder = Path(making) / out.name
        folder.mkdir()
        number = version(source, options.version)
        with step("write the chart and install.yaml"):
            _write_chart(folder, source, number, commit.epoch_seconds, options)
        _write_plugin(folder, source, number, commit.epoch_seconds, options)
        _write_bills(folder, source, number, commit.epoch_seconds)
        (folder / SUMS).write_text(sums(folder), encoding="utf-8")
        folder.rename(out)


def sums(folder: Path) -> str:
    """The SHA-256 of each file of a folder, as `sha256sum --check` reads it."""
    return "".join(f"{archives.sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir()))


def _write_chart(folder: Path, source: Path, number: str, epoch_seconds: int, options: Options) -> None:
    with tempfile.TemporaryDirectory(prefix="stele-chart-") as work:
        made = Path(work) / "stele"
        chart.release(options.images, made, source / "charts" / "stele", options.registry)
        packed = archives.tar_gz(archives.entries_below(made, "stele"), epoch_seconds)
        (folder / f"stele-{number}.tgz").write_bytes(packed)
        (folder / "install.yaml").write_text(manifest.rendered(made, number), encoding="utf-8")


def _write_plugin(folder: Path, source: Path, number: str, epoch_seconds: int, options: Options) -> None:
    found: dict[plugin.Platform, str] = {}
    for platform in options.platforms:
        with step(f"write kubectl-stele for {'/'.join(platform)}"):
            path = plugin.write(platform, number, source, epoch_seconds, folder)
        found[platform] = archives.sha256(path)
    manifest_text = plugin.krew_manifest(number, found, options.url)
    (folder / "stele.yaml").write_text(manifest_text, encoding="utf-8")


def _write_bills(folder: Path, source: Path, number: str, epoch_seconds: int) -> None:
    crates = (source / "native" / "Cargo.lock").read_text(encoding="utf-8")
    for name in (*locks.IMAGES, locks.PLUGIN):
        lock = locks.read(name, source / "images" / "locks")
        stamp = sbom.Stamp(number, epoch_seconds)
        # The plugin has no compiled module of the project.
        text = sbom.bill(name, lock, cargo_lock="" if name == locks.PLUGIN else crates, stamp=stamp)
        (folder / f"{sbom.subject(name)}.cdx.json").write_text(f"{text}\n", encoding="utf-8")
