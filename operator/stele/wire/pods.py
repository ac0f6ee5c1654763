"""What the pods that the master makes and those of copy jobs have in common.

Not in `model`: the image of copy jobs has no pydantic.
"""

from typing import Any

USER = 10001
"""Of the images: user and group, and the group that volumes belong to."""

SPARK_SECRET_FOLDER = "/etc/stele/spark"
SPARK_SECRET_KEY = "secret"
SPARK_SECRET_FILE = f"{SPARK_SECRET_FOLDER}/{SPARK_SECRET_KEY}"
"""By this drivers and executors know each other: a file, because viewers read the environment of pods."""
SPARK_SECRET_MOUNT = {"name": "spark-secret", "mountPath": SPARK_SECRET_FOLDER, "readOnly": True}


def container_security() -> dict[str, Any]:
    """Of a container that may do nothing a plain user may not."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def spark_secret_volume(name: str) -> dict[str, Any]:
    """The Secret of this name, which the image's group alone can read."""
    items = [{"key": SPARK_SECRET_KEY, "path": SPARK_SECRET_KEY}]
    source = {"secretName": name, "defaultMode": 0o440, "items": items}
    return {"name": SPARK_SECRET_MOUNT["name"], "secret": source}


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
