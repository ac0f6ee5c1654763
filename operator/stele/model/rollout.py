"""Revisions of a cluster's members: what of the spec takes a restart, kept as ControllerRevisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RESTARTED_AT = "stele.dev/restartedAt"
"""Annotation of a TabletCluster: a changed value restarts all members."""

TEMPLATE_FIELDS: tuple[tuple[str, ...], ...] = (
    ("images", "member"),
    ("resources",),
    ("podTemplate",),
    ("placement",),
    ("storage", "fsync"),
)
"""Fields of a TabletCluster's spec that the pods of its members are made of."""


FEATURES = "stele.dev/features"
"""Annotation of a ControllerRevision: the cluster's features while it was the present one."""


@dataclass(frozen=True)
class Revision:
    """One spec of the members. `number` grows; `template` has TEMPLATE_FIELDS as the user wrote them.

    `features` is the highest format that the cluster used with it.
    """

    number: int
    created: str
    template: Mapping[str, Any]
    features: int = 0

    @staticmethod
    def template_of(spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a spec that take a restart; those left out stay out."""
        template: dict[str, Any] = {}
        for path in TEMPLATE_FIELDS:
            source: Any = spec
            for name in path:
                source = source.get(name) if isinstance(source, Mapping) else None
            if source is None:
                continue
            target = template
            for name in path[:-1]:
                target = target.setdefault(name, {})
            target[path[-1]] = source
        return template

    @staticmethod
    def read(stored: Mapping[str, Any]) -> "Revision":
        """Return the revision of a stored ControllerRevision."""
        template, meta = (stored.get("data") or {}).get("spec") or {}, stored["metadata"]
        features = int((meta.get("annotations") or {}).get(FEATURES, 0))
        return Revision(int(stored["revision"]), meta.get("creationTimestamp", ""), template, features)
