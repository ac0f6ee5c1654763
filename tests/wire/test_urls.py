"""Addresses of processes: `http://HOST:PORT` alone, and nothing long is kept."""

from urllib.parse import urlsplit

import pytest

from stele.wire.urls import HOST_CHARS_MAX, host_and_port

LONGEST = ".".join(["a" * 63] * 4)[:HOST_CHARS_MAX]


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://10.0.0.1:7002", ("10.0.0.1", 7002)),
        ("http://[fe80::1]:7010/", ("fe80::1", 7010)),
        (f"http://{LONGEST}:65535/", (LONGEST, 65535)),
        (f"http://{LONGEST}a:65535", None),
        ("https://a:1", None),
        ("http://u@a:1", None),
        ("http://a:1/b", None),
        ("http://a:99999", None),
        ("http://[::1%25eth0]:1", None),
        ("http://a", None),
    ],
)
def test_only_a_host_and_a_port(url: str, found: tuple[str, int] | None) -> None:
    assert host_and_port(url) == found


def test_what_is_too_long_is_not_kept() -> None:
    """`urlsplit` remembers what it was given."""
    before = urlsplit.cache_info().misses  # type: ignore[attr-defined]
    assert host_and_port("http://" + "a" * 100_000 + ":1") is None
    assert urlsplit.cache_info().misses == before  # type: ignore[attr-defined]
