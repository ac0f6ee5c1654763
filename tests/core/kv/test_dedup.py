"""Whom a partition remembers: bounded, and never without the clients of the last minutes."""

import pytest

from stele.core.kv import dedup
from stele.core.kv.dedup import KEEP_SECONDS, RememberedClients

LATER_MS = KEEP_SECONDS * 1000


def test_the_least_recent_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "CLIENTS_MAX", 3)
    made = RememberedClients([(b"c", 30, 1), (b"a", 10, 1), (b"b", 20, 1)])
    assert made.remember(b"a", 40, 1) == []
    assert made.remember(b"d", 19 + LATER_MS, 1) is None
    assert (len(made), made.bytes) == (3, 3)
    assert made.remember(b"d", 20 + LATER_MS, 1) == [b"b"]
    assert made.remember(b"e", 50 + LATER_MS, 1) == [b"c"]
    assert (len(made), made.bytes) == (3, 3)


def test_as_many_go_as_the_bytes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "MEMORY_BYTES_MAX", 100)
    made = RememberedClients([(b"a", 1, 40), (b"b", 2, 40)])
    assert made.remember(b"c", LATER_MS, 90) is None
    assert made.remember(b"c", 2 + LATER_MS, 90) == [b"a", b"b"]
    assert (len(made), made.bytes) == (1, 90)
    assert made.remember(b"c", 3 + LATER_MS, 10) == []
    assert made.bytes == 10


def test_a_client_never_forgets_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "MEMORY_BYTES_MAX", 100)
    made = RememberedClients([(b"a", 1, 60), (b"b", 2, 40)])
    assert made.remember(b"a", 2 + LATER_MS, 70) == [b"b"]
    assert (len(made), made.bytes) == (1, 70)
