"""The difference between a stored status and the wanted one, as a merge patch."""

from collections.abc import Mapping
from typing import Any


def patch_of(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Only what differs; what is not wanted any more is null. Empty when nothing differs."""
    patch: dict[str, Any] = dict.fromkeys(stored.keys() - wanted.keys())
    for name, value in wanted.items():
        before = stored.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = patch_of(before, value)
            if inner:
                patch[name] = inner
        elif before != value:
            patch[name] = value
    return patch
