"""Which addresses the processes of pods listen on."""

import socket


def listen_hosts(bind: str) -> tuple[str, ...]:
    """Return `bind`, or when it is empty all addresses of IPv4, and of IPv6 where the pod has it.

    They are separate sockets: one for both would show IPv4 callers by other addresses.
    """
    if bind:
        return (bind,)
    return ("0.0.0.0", "::") if _has_ipv6() else ("0.0.0.0",)


def _has_ipv6() -> bool:
    """Return whether a socket can be bound: an IPv6 that is compiled in may be switched off."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True
