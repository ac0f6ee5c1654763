"""Writes one OCI archive with many images that share layers, out of folders and single programs."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_INDEX = "application/vnd.oci.image.index.v1+json"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Blob:
    """Content by its SHA-256: a file on disk or bytes in memory."""

    digest: str
    size: int
    source: Path | bytes


@dataclass
class Archive:
    """Collects images; `write` puts them into one tar. Layers are made in `work`, uncompressed."""

    work: Path
    _blobs: dict[str, Blob] = field(default_factory=dict)
    _manifests: list[dict[str, object]] = field(default_factory=list)

    def layer_of_folder(self, folder: Path) -> Blob:
        """A layer with all of a folder. Times are dropped, so that the same content is the same layer."""
        path = self.work / "folder.layer"
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(folder, arcname=".", filter=_without_time)
        return self._keep(path)

    def layer_of_program(self, program: Path, place: str, links: Sequence[str] = ()) -> Blob:
        """A layer with one executable file at `place` (no leading slash), and links to it beside it."""
        path = self.work / f"{program.name}.layer"
        info = tarfile.TarInfo(place)
        info.mode, info.size = 0o755, program.stat().st_size
        with tarfile.open(path, "w") as tar, program.open("rb") as content:
            tar.addfile(info, content)
            for name in links:
                link = tarfile.TarInfo(str(Path(place).with_name(name)))
                link.type, link.linkname = tarfile.SYMTYPE, Path(place).name
                tar.addfile(link)
        return self._keep(path)

    def add(self, names: Sequence[str], layers: Sequence[Blob], entrypoint: Sequence[str] = ()) -> None:
        """One image under all of `names` (each with a tag)."""
        target = {"architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
        search = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        config = self._keep_json(
            {
                **target,
                "config": {"Entrypoint": list(entrypoint) or None, "Env": [search]},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
                "history": [{"created_by": "stele e2e.cluster"} for _ in layers],
            }
        )
        parts = {
            "config": _described(config, _CONFIG),
            "layers": [_described(layer, _LAYER) for layer in layers],
        }
        manifest = self._keep_json({"schemaVersion": 2, "mediaType": _MANIFEST, **parts})
        for name in names:
            tag = name.rsplit(":", 1)[1]
            notes = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
            self._manifests.append(
                {**_described(manifest, _MANIFEST), "platform": target, "annotations": notes}
            )

    def write(self, path: Path) -> None:
        """Write the archive; `path` holds everything afterwards."""
        with tarfile.open(path, "w") as tar:
            add_bytes(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            add_bytes(tar, "index.json", json.dumps(index(self._manifests)).encode())
            for blob in self._blobs.values():
                name = f"blobs/sha256/{blob.digest}"
                if isinstance(blob.source, bytes):
                    add_bytes(tar, name, blob.source)
                else:
                    tar.add(blob.source, arcname=name)

    def _keep(self, path: Path) -> Blob:
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        return self._blobs.setdefault(digest, Blob(digest, path.stat().st_size, path))

    def _keep_json(self, value: object) -> Blob:
        data = json.dumps(value).encode()
        digest = hashlib.sha256(data).hexdigest()
        return self._blobs.setdefault(digest, Blob(digest, len(data), data))


def index(manifests: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """The table of contents of an archive."""
    return {"schemaVersion": 2, "mediaType": _INDEX, "manifests": list(manifests)}


def named(manifest: Mapping[str, object], name: str) -> dict[str, object]:
    """An entry of the table of contents with the full name that containerd gives the image."""
    notes = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1]}
    return {**manifest, "annotations": notes}


def _described(blob: Blob, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{blob.digest}", "size": blob.size}


def _without_time(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mtime, info.uname, info.gname = 0, "", ""
    return info


def add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Put bytes into a tar as a file."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))
