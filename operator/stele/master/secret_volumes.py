"""Secrets of a cluster's members: their names, and how pods mount them.

They are optional: a pod starts without them, and the kubelet puts them into its folders once they exist.
"""

from typing import Any

TLS_FOLDER = "/etc/stele/tls"
"""Where each container of a member's pod has its certificate, its key and the CA that it trusts."""

USERS_FOLDER, USERS_KEY = "/etc/stele/users", "users"
USERS_FILE = f"{USERS_FOLDER}/{USERS_KEY}"
"""Where a member has the users of its cluster."""

READABLE = 0o440
"""Mode of the files: for the image's group only."""

TLS_MOUNT = {"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}
USERS_MOUNT = {"name": "users", "mountPath": USERS_FOLDER, "readOnly": True}


def tls_name(member: str) -> str:
    return f"{member}-tls"


def users_name(cluster: str) -> str:
    return f"{cluster}-users"


def secret_volumes(cluster: str, member: str) -> list[dict[str, Any]]:
    named = {"tls": tls_name(member), "users": users_name(cluster)}
    return [
        {"name": name, "secret": {"secretName": secret, "optional": True, "defaultMode": READABLE}}
        for name, secret in named.items()
    ]
