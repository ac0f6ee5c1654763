"""HTTP addresses of processes."""

import ipaddress
import re
from urllib.parse import urlsplit

_LABELS = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
HTTP, HTTPS = "http://", "https://"
LOG_LEVEL = "/v1/log-level"
"""Where processes that copy are told the level of their log: a `LogLevel` as JSON."""
HOST_CHARS_MAX = 253
URL_CHARS_MAX = HOST_CHARS_MAX + len("http://[]:65535/")
"""Longer ones are not looked at: `urlsplit` keeps the last 128 texts that it was given."""


def is_host(text: str) -> bool:
    """Return whether the text has the form of a host name or address."""
    if ":" not in text:
        return len(text) <= HOST_CHARS_MAX and _LABELS.fullmatch(text) is not None
    try:
        return ipaddress.IPv6Address(text).scope_id is None
    except ValueError:
        return False


def host_and_port(root: str) -> tuple[str, int] | None:
    """Return host and port of `http://HOST:PORT`, None for any other URL."""
    if len(root) > URL_CHARS_MAX:
        return None
    try:
        parts = urlsplit(root)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme != "http" or not host or not port or not is_host(host):
        return None
    return None if parts.username or parts.query or parts.path not in ("", "/") else (host, port)


def http_root(address: str, port: int) -> str:
    """Return `http://ADDRESS:PORT`."""
    return root(address, port, with_tls=False)


def root(address: str, port: int, *, with_tls: bool) -> str:
    """Return `http://ADDRESS:PORT`, or `https` with TLS."""
    return f"{HTTPS if with_tls else HTTP}{host_port(address, port)}"


def host_port(address: str, port: int) -> str:
    """Return `ADDRESS:PORT`, with brackets around an IPv6 address."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
