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

TEMPLATE_FIELDS = (
    "affinity",
    "nodeSelector",
    "tolerations",
    "topologySpreadConstraints",
    "priorityClassName",
    "imagePullSecrets",
    "securityContext",
)
"""Fields of a pod's spec that users can set, by themselves or by spec.placement."""

LOG_ENV = ("STELE_LOG_FORMAT", "STELE_LOG_NAMESPACE", "STELE_LOG_CLUSTER", "STELE_LOG_MEMBER")
LIVE_ENV = frozenset({"STELE_HEARTBEAT_MS", "STELE_LEASE_MS", "STELE_FIRST_MEMBER_TLS", *LOG_ENV})
"""Variables that restart no pod: how it logs, and what a member starts with, as it learns changes from the
master."""

Object = dict[str, Any]


def revision_of(spec: Mapping[str, Any]) -> str:
    """Return the same hash for equal amounts, however written, for empty groups written or left out, and
    whatever a member starts with that it learns from the master."""
    text = json.dumps(_plain(spec), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:REVISION_LETTERS]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _numbers(each) if name == "resources" else _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value if not _is_live(each)] if isinstance(value, list) else value


def _is_live(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("name") in LIVE_ENV


def _numbers(resources: Object) -> list[str]:
    amounts = _amounts(resources).items()
    return sorted(f"{group} {name} {amount.normalize()}" for (group, name), amount in amounts)


def has_revision(pod: Object, revision: str) -> bool:
    return bool((pod["metadata"].get("annotations") or {}).get(REVISION) == revision)


def outdated_pod(pod: Object, wanted: Object) -> tuple[str, ...]:
    """Return what of the pod differs from the wanted one; empty when nothing does.

    A pod without a revision was created by an operator that wrote none: only its visible fields count.
    """
    if has_revision(pod, wanted["metadata"]["annotations"][REVISION]):
        return ()
    differences = tuple(dict.fromkeys(_differences(pod, wanted)))
    return differences or (("revision",) if REVISION in (pod["metadata"].get("annotations") or {}) else ())


def outdated_claim(claim: Object, wanted: Object) -> tuple[str, ...]:
    """Compare sizes only; a claim that is larger than specified matches.

    Returns the sizes, and what Kubernetes says about why it has not grown yet.
    """
    size = wanted["spec"]["resources"]["requests"]["storage"]
    requested = claim["spec"]["resources"]["requests"]["storage"]
    capacity = ((claim.get("status") or {}).get("capacity") or {}).get("storage", requested)
    least = min(requested, capacity, key=parse_quantity)
    if parse_quantity(least) >= parse_quantity(size):
        return ()
    shown = (claim.get("status") or {}).get("conditions") or []
    texts = [f"{each['type']}: {each.get('message', '')}" for each in shown if each["status"] == "True"]
    return (f"{least} of {size}", *(text.rstrip(": ") for text in texts))


def _differences(pod: Object, wanted: Object) -> Iterator[str]:
    for name in ("labels", "annotations"):
        given = {key: value for key, value in wanted["metadata"][name].items() if key != REVISION}
        if not _includes(pod["metadata"].get(name, {}), given):
            yield name
    present = {each["name"]: each for each in pod["spec"]["containers"]}
    for container in wanted["spec"]["containers"]:
        yield from _container_differences(present.get(container["name"], {}), container)
    yield from (
        name
        for name in TEMPLATE_FIELDS
        if name in wanted["spec"] and not _includes(pod["spec"].get(name), wanted["spec"][name])
    )


def _container_differences(stored: Object, wanted: Object) -> Iterator[str]:
    if stored.get("image") != wanted["image"]:
        yield "image"
    if not _amounts(wanted["resources"]).items() <= _amounts(stored.get("resources") or {}).items():
        yield "resources"
    values = {each["name"]: each.get("value") for each in stored.get("env") or ()}
    yield from (
        each["name"]
        for each in wanted["env"]
        if each["name"] not in LIVE_ENV and values.get(each["name"], ...) != each.get("value")
    )


def _includes(there: Any, wanted: Any) -> bool:
    """Return whether a stored field has what is wanted, and perhaps defaults besides."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(_includes(there.get(key), wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return all(any(_includes(item, each) for item in there or ()) for each in wanted)
    return bool(there == wanted)


def _amounts(resources: Object) -> dict[tuple[str, str], Decimal]:
    return {
        (group, name): parse_quantity(amount)
        for group in ("requests", "limits")
        for name, amount in (resources.get(group) or {}).items()
    }
