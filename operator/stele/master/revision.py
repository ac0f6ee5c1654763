"""Compares pods and volume claims with those of the present spec: by revision, or else field by field."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from stele.model.common import parse_quantity

REVISION = "stele.dev/revision"
"""Annotation of pods and claims: a hash of the spec that they were created from."""

REVISION_LETTERS = 12

Object = dict[str, Any]


def revision_of(spec: Mapping[str, Any]) -> str:
    """Return the same hash for equal amounts, however written, and for empty groups written or left out."""
    text = json.dumps(_plain(spec), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:REVISION_LETTERS]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _numbers(each) if name == "resources" else _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _numbers(resources: Object) -> list[str]:
    amounts = _amounts(resources).items()
    return sorted(f"{group} {name} {amount.normalize()}" for (group, name), amount in amounts)


def has_revision(pod: Object, revision: str) -> bool:
    return bool((pod["metadata"].get("annotations") or {}).get(REVISION) == revision)


def outdated_pod(pod: Object, wanted: Object) -> tuple[str, ...]:
    """What of the pod is not as wanted, empty when nothing is. One that has no revision was made by an
    operator that wrote none: it is outdated only for what can be seen in it.
    """
    if has_revision(pod, wanted["metadata"]["annotations"][REVISION]):
        return ()
    differences = tuple(dict.fromkeys(_differences(pod["spec"], wanted["spec"])))
    return differences or (("revision",) if REVISION in (pod["metadata"].get("annotations") or {}) else ())


def outdated_claim(claim: Object, wanted: Object) -> tuple[str, ...]:
    """Compare sizes only; a claim that is larger than specified matches."""
    size = wanted["spec"]["resources"]["requests"]["storage"]
    requested = claim["spec"]["resources"]["requests"]["storage"]
    capacity = ((claim.get("status") or {}).get("capacity") or {}).get("storage", requested)
    least = min(requested, capacity, key=parse_quantity)
    return () if parse_quantity(least) >= parse_quantity(size) else (f"{least} of {size}",)


def _differences(there: Object, wanted: Object) -> Iterator[str]:
    present = {each["name"]: each for each in there["containers"]}
    for container in wanted["containers"]:
        other = present.get(container["name"], {})
        if other.get("image") != container["image"]:
            yield "image"
        if not _amounts(container["resources"]).items() <= _amounts(other.get("resources") or {}).items():
            yield "resources"
        values = {each["name"]: each.get("value") for each in other.get("env") or ()}
        yield from (
            each["name"] for each in container["env"] if values.get(each["name"]) != each.get("value")
        )
    if there.get("affinity") != wanted.get("affinity"):
        yield "placement"


def _amounts(resources: Object) -> dict[tuple[str, str], Decimal]:
    return {
        (group, name): parse_quantity(amount)
        for group in ("requests", "limits")
        for name, amount in (resources.get(group) or {}).items()
    }
