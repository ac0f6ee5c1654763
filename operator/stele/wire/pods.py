"""Settings, labels and ports shared by the pods that the master creates and those of copy jobs.

They are not in `model` because the image of copy jobs lacks pydantic.
"""

from typing import Any

USER = 10001
"""User and group of the images, and group of the volumes."""

COPIER_LABEL = "stele.dev/copier"
"""Of executors: the pod of their driver."""
DRIVER_PORT, DRIVER_BLOCK_PORT, EXECUTOR_BLOCK_PORT = 7100, 7300, 7079
DRIVER_PORTS_MAX = 128
"""Length of the port ranges from DRIVER_PORT and DRIVER_BLOCK_PORT, where each driver takes the first
free port: for 64 drivers, and as many that are ending."""


def admin_secret_name(cluster: str) -> str:
    """Return the name of the Secret with the certificate that administrators show."""
    return f"{cluster}-admin-tls"


SPARK_SECRET_FOLDER = "/etc/stele/spark"
SPARK_SECRET_KEY = "secret"
SPARK_SECRET_FILE = f"{SPARK_SECRET_FOLDER}/{SPARK_SECRET_KEY}"
"""Secret by which Spark drivers and executors authenticate: a file, since viewers can read environments."""
SPARK_SECRET_MOUNT = {"name": "spark-secret", "mountPath": SPARK_SECRET_FOLDER, "readOnly": True}


def container_security() -> dict[str, Any]:
    """Return the security context of an unprivileged container, which only writes to its volumes."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def spark_secret_volume(name: str) -> dict[str, Any]:
    """Return a volume with the Secret, readable by the image's group only."""
    items = [{"key": SPARK_SECRET_KEY, "path": SPARK_SECRET_KEY}]
    source = {"secretName": name, "defaultMode": 0o440, "items": items}
    return {"name": SPARK_SECRET_MOUNT["name"], "secret": source}


def pod_security() -> dict[str, Any]:
    """Return a security context that meets the Pod Security Standard `restricted`."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
