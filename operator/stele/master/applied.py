"""Notes on an object what its owner's spec adds to it, so that it can be taken away again.

The names are in an annotation that is written together with the fields: what others set is never touched, and
a master that never saw the fields takes them away as well. Pure.
"""

import json
from collections.abc import Mapping, Set
from typing import Any

Object = dict[str, Any]

APPLIED = "stele.dev/applied"
"""Annotation with the names, by the part of the object that they are in."""

_PARTS = ("annotations", "labels", "spec")
_DEFAULTS = {"ipFamilyPolicy": "SingleStack"}
"""Of fields of a Service that Kubernetes keeps as they are when an update leaves them out."""


def with_note(body: Object, **added: Mapping[str, Any]) -> Object:
    """Return a new object's body with what is added to its `annotations`, `labels` and `spec`."""
    meta, names = body["metadata"], {part: sorted(fields) for part, fields in added.items() if fields}
    note = {APPLIED: json.dumps(names, separators=(",", ":"), sort_keys=True)} if names else {}
    annotations = {**added.get("annotations", {}), **note}
    metadata = {**meta, "labels": {**added.get("labels", {}), **meta["labels"]}}
    if annotations:
        metadata["annotations"] = annotations
    return {**body, "metadata": metadata, "spec": {**body["spec"], **added.get("spec", {})}}


def over(stored: Object, body: Object) -> Object:
    """Return the stored object at its version with the fields of `body`, without what was only noted."""
    meta, ours, noted = stored["metadata"], body["metadata"], _noted(stored)
    annotations = _without(meta.get("annotations"), {*noted["annotations"], APPLIED})
    annotations |= ours.get("annotations") or {}
    labels = _without(meta.get("labels"), noted["labels"]) | ours["labels"]
    metadata = {**meta, "labels": labels, "ownerReferences": ours["ownerReferences"]}
    if annotations or meta.get("annotations"):
        metadata["annotations"] = annotations
    defaults = {name: value for name, value in _DEFAULTS.items() if name in noted["spec"]}
    spec = _without(stored["spec"], noted["spec"]) | defaults | body["spec"]
    return {**stored, "metadata": metadata, "spec": spec}


def _without(fields: Mapping[str, Any] | None, names: Set[str]) -> Object:
    return {name: value for name, value in (fields or {}).items() if name not in names}


def _noted(stored: Object) -> dict[str, Set[str]]:
    """Return the names of the note by part; none for one that others have written over."""
    try:
        names = json.loads((stored["metadata"].get("annotations") or {}).get(APPLIED, "{}"))
        return {part: frozenset(map(str, names.get(part, ()))) for part in _PARTS}
    except (ValueError, TypeError, AttributeError):
        return dict.fromkeys(_PARTS, frozenset())
