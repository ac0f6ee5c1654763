"""What the pods that the master makes and those of copy jobs have in common.

Not in `model`: the image of copy jobs has no pydantic.
"""

from typing import Any

USER = 10001
"""Of the images: user and group, and the group that volumes belong to."""


def container_security() -> dict[str, Any]:
    """Of a container that may do nothing a plain user may not."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def pod_security() -> dict[str, Any]:
    """As the Pod Security Standard `restricted` wants it; volumes are given to the group once."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
