"""Objects as users send them to an API server."""

from typing import Any

from stele.adapters.kubernetes.api import Kind


def body(kind: Kind, name: str, spec: Any, **meta: Any) -> dict[str, Any]:
    """`meta`: what its metadata has besides the name."""
    return {"apiVersion": kind.api, "kind": kind.kind, "metadata": {"name": name, **meta}, "spec": spec}
