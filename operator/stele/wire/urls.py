"""Where a process answers over HTTP, as a URL."""


def http_root(address: str, port: int) -> str:
    """`http://ADDRESS:PORT`; an IPv6 address in brackets, as URLs want it."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}"
