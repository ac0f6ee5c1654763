"""A machine that never fetched Debian's index fetches it, once."""

import subprocess
from typing import Any

import pytest

from e2e.demo import inputs
from e2e.demo.errors import PreflightError

FULL = b"\n\n".join(b"Package: p%d\nVersion: 1" % n for n in range(inputs.INDEX_PACKAGES_MIN + 2))


class _Apt:
    """Stands for apt: `after` is what dumpavail prints once the index was fetched."""

    def __init__(self, before: bytes, after: bytes) -> None:
        self._printed, self._after = before, after
        self.calls: list[str] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        self.calls.append(command[0])
        if command[0] == "apt-get":
            self._printed = self._after
            return subprocess.CompletedProcess(command, 0, b"", b"")
        return subprocess.CompletedProcess(command, 0, self._printed, b"")


def _with(monkeypatch: pytest.MonkeyPatch, apt: _Apt, user: int = 0) -> _Apt:
    monkeypatch.setattr(inputs.subprocess, "run", apt)
    monkeypatch.setattr(inputs.os, "geteuid", lambda: user)
    return apt


def test_a_fetched_index_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    apt = _with(monkeypatch, _Apt(FULL, b""))
    assert len(inputs.read_packages().values) == inputs.INDEX_PACKAGES_MIN + 2
    assert apt.calls == ["apt-cache"]


def test_a_missing_index_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    apt = _with(monkeypatch, _Apt(b"", FULL))
    assert len(inputs.read_packages().values) == inputs.INDEX_PACKAGES_MIN + 2
    assert apt.calls == ["apt-cache", "apt-get", "apt-cache"]


def test_an_index_that_cannot_be_fetched_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    _with(monkeypatch, _Apt(b"", b""))
    with pytest.raises(PreflightError, match="DATA=FILE"):
        inputs.read_packages()


def test_only_root_may_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    apt = _with(monkeypatch, _Apt(b"", FULL), user=1000)
    with pytest.raises(PreflightError, match="apt-get update"):
        inputs.read_packages()
    assert apt.calls == ["apt-cache"]
