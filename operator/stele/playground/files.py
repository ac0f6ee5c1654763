"""Files of a playground that are there as a whole or not at all."""

import os
from pathlib import Path
from typing import Any

import yaml

from stele.adapters.folders import sync_folder
from stele.errors import Corrupt, Uncertain

Object = dict[str, Any]


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes text of several lines as such, so that people can read tables."""


def _text(dumper: Any, value: str) -> Any:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def write_object(path: Path, value: Object) -> None:
    """Replace a file; it lasts once this returns. Raises Uncertain when the disk refuses."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        new.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise Uncertain(f"{path} cannot be written: {error}") from error


def remove_file(path: Path) -> None:
    """Remove a file; it is gone once this returns. Raises Uncertain when the disk refuses."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise Uncertain(f"{path} cannot be removed: {error}") from error


def link_to(link: Path, target: Path) -> None:
    """Make a symbolic link to a file of the same folder, in place of one to another."""
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target.name)
    new.replace(link)


def read_object(path: Path) -> Object:
    """Read a file that `write_object` wrote, or a person changed.

    Raises Corrupt unless it has one object with a name.
    """
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Corrupt(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict) or not isinstance((value.get("metadata") or {}).get("name"), str):
        raise Corrupt(f"{path} has no object with metadata.name; restore it, or remove the playground")
    return value
