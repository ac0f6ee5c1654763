"""The number of loaded tablets, which the user sees at the end of a load."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stele.bulkjob import __main__ as bulkjob
from stele.errors import Unavailable


class Busy:
    """Two members, the second of which answers after some calls; each has loaded two tablets."""

    def __init__(self, silent_calls: int) -> None:
        self.left = silent_calls
        self.table = SimpleNamespace(members=[SimpleNamespace(index=0), SimpleNamespace(index=1)])

    def admin(self, index: int) -> tuple[str, int]:
        return f"10.0.0.{index}", 7001

    def call(self, place: tuple[str, int], method: str, path: str) -> bytes:
        if place[0] == "10.0.0.1" and self.left:
            self.left -= 1
            raise Unavailable("it is busy")
        return msgspec.json.encode({"partitions": [1, 2]})


def test_a_member_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulkjob, "POLL_SECONDS", 0.0)
    members: Any = Busy(silent_calls=3)
    assert bulkjob._taken(members, "load-1", 60.0) == 4


def test_progress_waits_for_nobody() -> None:
    members: Any = Busy(silent_calls=1)
    assert bulkjob._taken(members, "load-1") == 2
