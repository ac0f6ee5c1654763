"""A store of images as blobs by digest (an OCI layout), out of which archives of missing layers are cut.

Loading a changed image into the nodes then costs its changed layer, not the hundreds of megabytes below it.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from e2e.cluster import archive, cache, podman
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import run

_REFERENCE = "org.opencontainers.image.ref.name"


def export(image: str, path: Path, present: Collection[str]) -> None:
    """Write an archive of `image` without the layers whose digests (`sha256:...`) the reader has already.

    Layers stay unpacked: packing takes longer than copying, and only then is a known layer not read again.
    """
    store = cache.root() / "oci"
    save = [
        "podman",
        "save",
        "--quiet",
        "--format",
        "oci-dir",
        "--uncompressed",
        "--output",
        str(store),
        image,
    ]
    run(save, cache.root() / "logs" / "image-export.log", env=podman.environment())
    entries = _entries(store)
    wanted = next((entry for entry in entries if entry["annotations"].get(_REFERENCE) == image), None)
    if wanted is None:
        raise ClusterError(
            f"The image store {store} lacks {image} just after it was put there; remove the folder."
        )
    _write(store, wanted, image, present, path)
    _forget_older(store, entries, wanted)


def _entries(store: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((store / "index.json").read_text(encoding="utf-8"))[
        "manifests"
    ]
    return entries


def _blob(store: Path, digest: str) -> Path:
    return store / "blobs" / digest.replace(":", "/")


def _manifest(store: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(_blob(store, entry["digest"]).read_text(encoding="utf-8"))
    return manifest


def _write(store: Path, entry: Mapping[str, Any], image: str, present: Collection[str], path: Path) -> None:
    manifest = _manifest(store, entry)
    missing = [layer["digest"] for layer in manifest["layers"] if layer["digest"] not in present]
    digests = dict.fromkeys([entry["digest"], manifest["config"]["digest"], *missing])
    with tarfile.open(path, "w") as tar:
        archive.add_bytes(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        archive.add_bytes(
            tar, "index.json", json.dumps(archive.index([archive.named(entry, image)])).encode()
        )
        for digest in digests:
            tar.add(_blob(store, digest), arcname=f"blobs/{digest.replace(':', '/')}")


def _forget_older(store: Path, entries: list[dict[str, Any]], wanted: Mapping[str, Any]) -> None:
    """Keep one image of each repository: drop the others from the index, then the blobs that nobody needs."""
    repository = str(wanted["annotations"][_REFERENCE]).rsplit(":", 1)[0]
    kept = [e for e in entries if e is wanted or e["annotations"][_REFERENCE].rsplit(":", 1)[0] != repository]
    aside = store / "index.json.new"
    aside.write_text(json.dumps(archive.index(kept)), encoding="utf-8")
    aside.rename(store / "index.json")
    needed = {digest for entry in kept for digest in _digests(store, entry)}
    for blob in (store / "blobs" / "sha256").iterdir():
        if f"sha256:{blob.name}" not in needed:
            blob.unlink()


def _digests(store: Path, entry: Mapping[str, Any]) -> Iterable[str]:
    manifest = _manifest(store, entry)
    return [entry["digest"], manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]
