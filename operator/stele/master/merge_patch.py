"""JSON merge patches (RFC 7386): the difference between two objects, and what a patch makes of one."""

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


def merged(old: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a patch."""
    found = dict(old)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            before = found.get(key)
            found[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            found[key] = value
    return found
