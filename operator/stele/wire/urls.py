"""Where a process answers over HTTP, as a URL."""

import ipaddress
import re
from urllib.parse import urlsplit

_LABELS = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
HOST_CHARS_MAX = 253


def is_host(text: str) -> bool:
    """Whether it may be a host's name or address: others cannot even be looked up."""
    if ":" not in text:
        return len(text) <= HOST_CHARS_MAX and _LABELS.fullmatch(text) is not None
    try:
        return ipaddress.IPv6Address(text).scope_id is None
    except ValueError:
        return False


def host_and_port(root: str) -> tuple[str, int] | None:
    """Those of `http://HOST:PORT`; None for a URL of another kind."""
    try:
        parts = urlsplit(root)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme != "http" or not host or not port or not is_host(host):
        return None
    return None if parts.username or parts.query or parts.path not in ("", "/") else (host, port)


def http_root(address: str, port: int) -> str:
    """`http://ADDRESS:PORT`; an IPv6 address in brackets, as URLs want it."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}"
