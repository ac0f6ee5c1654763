"""A chart for a release: each image is named by its digest, so that a registry cannot replace it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.supply.locks import IMAGES, PROJECT

CHART = PROJECT / "charts" / "stele"
_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


def pairs(words: list[str]) -> dict[str, str]:
    """NAME=REFERENCE of each image. Raises ClusterError when one is missing, unknown or has no digest."""
    found = dict(word.partition("=")[::2] for word in words)
    if sorted(found) != sorted(IMAGES) or len(words) != len(IMAGES):
        wanted = " ".join(f"{name}=REFERENCE" for name in IMAGES)
        raise ClusterError(f"Got {' '.join(words)!r}, expected each image once: {wanted}.")
    for name, reference in found.items():
        if not _DIGEST.fullmatch(reference):
            raise ClusterError(
                f"{name} is {reference!r}, expected REPOSITORY[:TAG]@sha256:DIGEST; "
                "the registry names the digest when the image is pushed."
            )
    return found


def release(images: Mapping[str, str], out: Path) -> None:
    """Write the chart to the folder `out`, which must not exist, with `images` in place of those of tests."""
    if out.exists():
        raise ClusterError(f"{out} exists; name a folder that does not.")
    shutil.copytree(CHART, out)
    for path in (path for path in out.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8")
        for name, reference in images.items():
            text = text.replace(f"localhost/stele-{name}:dev", reference)
        path.write_text(text, encoding="utf-8")
