"""Secrets of a cluster's members and copier: their names, and how pods mount them.

They are optional: a pod starts without them, and the kubelet puts them into its folders once they exist.
"""

from typing import Any

TLS_FOLDER = "/etc/stele/tls"
"""Where containers of members and copiers have their certificate, its key and the CA that they trust."""

USERS_FOLDER, USERS_KEY = "/etc/stele/users", "users"
USERS_FILE = f"{USERS_FOLDER}/{USERS_KEY}"
"""Where a member has the users of its cluster."""

READABLE = 0o440
"""Mode of the files: for the image's group only."""

TLS_MOUNT = {"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}
USERS_MOUNT = {"name": "users", "mountPath": USERS_FOLDER, "readOnly": True}


def tls_name(pod: str) -> str:
    """Return the name of the Secret with the certificate of a member's pod, or of the copier's."""
    return f"{pod}-tls"


def users_name(cluster: str) -> str:
    return f"{cluster}-users"


def secret_volumes(cluster: str, member: str) -> list[dict[str, Any]]:
    return [tls_volume(member), _volume("users", users_name(cluster))]


def tls_volume(pod: str) -> dict[str, Any]:
    return _volume("tls", tls_name(pod))


def _volume(name: str, secret: str) -> dict[str, Any]:
    return {"name": name, "secret": {"secretName": secret, "optional": True, "defaultMode": READABLE}}
