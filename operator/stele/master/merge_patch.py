"""The difference between a stored and a desired status, as a JSON merge patch (RFC 7386)."""

from collections.abc import Mapping
from typing import Any


def patch_of(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differing fields, with null for removed ones; empty when nothing differs."""
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
