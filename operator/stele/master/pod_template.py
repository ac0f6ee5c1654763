"""What spec.podTemplate adds to pods. Pure; the model has refused what the operator sets itself."""

from collections.abc import Mapping
from typing import Any

from stele.model.pod_template import PodTemplate

Object = dict[str, Any]

METADATA = ("labels", "annotations")
APART = (*METADATA, "env", "imagePullSecrets")
"""Fields that are not copied into a pod's spec as they are."""

EXECUTOR_FIELDS = ("tolerations", "priorityClassName", "securityContext")
"""Fields that Spark's pods have too: an executor runs on its member's node, on the same volume."""


def fields_of(template: PodTemplate) -> Object:
    """Return the given fields; an empty securityContext counts as given."""
    fields = template.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    return {name: value for name, value in fields.items() if value or name == "securityContext"}


def metadata_of(template: PodTemplate) -> Object:
    return {name: value for name, value in fields_of(template).items() if name in METADATA}


def executor_fields(template: PodTemplate) -> Object:
    return {name: value for name, value in fields_of(template).items() if name in EXECUTOR_FIELDS}


def with_template(spec: Object, template: PodTemplate, members: Mapping[str, str]) -> Object:
    """Return a member's pod spec with the given fields, which replace those of `spec`.

    An affinity replaces those of its kind only. Constraints without a selector count `members`.
    """
    given = {name: value for name, value in fields_of(template).items() if name not in APART}
    if affinity := given.get("affinity"):
        given["affinity"] = spec["affinity"] | affinity
    if spread := given.get("topologySpreadConstraints"):
        counted = {"labelSelector": {"matchLabels": dict(members)}}
        given["topologySpreadConstraints"] = [counted | constraint for constraint in spread]
    return spec | given
