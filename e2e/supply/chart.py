"""The chart of a release: where its images are, each by its digest if a registry must not replace it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.supply.locks import IMAGES, PROJECT

CHART = PROJECT / "charts" / "stele"
VALUES = {"operator": "operator", "member": "member", "spark": "spark", "sql": "bulk"}
"""The key below `images` of the chart's values, by the name of the image."""
_REFERENCE = re.compile(
    r"(?P<repository>[^\s:@]+(:\d+/[^\s:@]+)?)(:(?P<tag>[\w.-]+))?@(?P<digest>sha256:[0-9a-f]{64})"
)
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?(:\d+)?(/[a-z0-9._-]+)*")


def pairs(words: list[str]) -> dict[str, str]:
    """NAME=REFERENCE of each image. Raises ClusterError when one is missing, unknown or has no digest."""
    found = dict(word.partition("=")[::2] for word in words)
    if sorted(found) != sorted(IMAGES) or len(words) != len(IMAGES):
        wanted = " ".join(f"{name}=REFERENCE" for name in IMAGES)
        raise ClusterError(f"Got {' '.join(words)!r}, expected each image once: {wanted}.")
    for name, reference in found.items():
        if not _REFERENCE.fullmatch(reference):
            raise ClusterError(
                f"{name} is {reference!r}, expected REPOSITORY[:TAG]@sha256:DIGEST; "
                "the registry names the digest when the image is pushed."
            )
    return found


def registry(word: str) -> str:
    """The place of all images, without a slash at its end. Raises ClusterError when it is none."""
    if not _REGISTRY.fullmatch(word):
        raise ClusterError(
            f"--registry is {word!r}, expected HOST[:PORT][/PATH], as registry.example.com/team."
        )
    return word


def release(images: Mapping[str, str], out: Path, chart: Path = CHART, place: str = "") -> None:
    """Write the chart to the folder `out`, which must not exist.

    `images` are references by name, each with a digest; without any, `place` is the registry of all of them.
    """
    if out.exists():
        raise ClusterError(f"{out} exists; name a folder that does not.")
    shutil.copytree(chart, out, ignore=shutil.ignore_patterns("__pycache__"))
    values = out / "values.yaml"
    text = values.read_text(encoding="utf-8")
    if place:
        text = _replaced(text, '  registry: ""\n', f"  registry: {place}\n")
    for name, reference in images.items():
        found = _REFERENCE.fullmatch(reference)
        assert found, reference
        own = _image(VALUES[name], f"localhost/stele-{name}", "", "")
        given = _image(VALUES[name], found["repository"], found["tag"] or "", found["digest"])
        text = _replaced(text, own, given)
    values.write_text(text, encoding="utf-8")


def _image(key: str, repository: str, tag: str, digest: str) -> str:
    """The lines of one image in the values."""
    return f'  {key}:\n    repository: {repository}\n    tag: "{tag}"\n    digest: "{digest}"\n'


def _replaced(text: str, old: str, new: str) -> str:
    """The comments of the values stay as they are, so they are changed as text."""
    if text.count(old) != 1:
        raise ClusterError(
            f"values.yaml of the chart has these lines {text.count(old)} times, expected once:\n{old}"
        )
    return text.replace(old, new)
