"""Where a log goes on: with which query, and which lines were shown."""

from typing import Any

import pytest

from stele.cli import log_place
from stele.cli.log_place import LogPlace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(place: LogPlace, *lines: str) -> list[str]:
    found = (place.unseen(line.encode()) for line in lines)
    return [line.decode() for line in found if line is not None]


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({}, {}),
        ({"tailLines": "10"}, {"sinceSeconds": "8"}),
        ({"sinceSeconds": "600"}, {"sinceSeconds": "608"}),
        ({"sinceSeconds": "600", "tailLines": "5"}, {"sinceSeconds": "608"}),
    ],
)
def test_without_a_line_all_since_the_first_connection_counts(first: Any, again: Any) -> None:
    clock = Clock()
    place = LogPlace(first, clock)
    assert place.query() == first
    clock.now += 7.5
    assert place.query() == again


def test_it_goes_on_from_the_last_line_whatever_the_clock_of_this_machine_says() -> None:
    place = LogPlace({"tailLines": "10"}, Clock())
    place.query()
    assert shown(place, "2026-01-02T12:00:05.250000000+02:00 a", "2026-01-02T10:00:03Z b") == ["a", "b"]
    assert place.query() == {"sinceTime": "2026-01-02T10:00:04Z"}


def test_lines_count_as_often_as_they_were_there() -> None:
    place, line = LogPlace({}, Clock()), "2026-01-02T10:00:05.1Z same"
    place.query()
    assert shown(place, line, line) == ["same", "same"]
    for _ in range(2):
        place.query()
        assert shown(place, line, line) == []
    assert shown(place, line) == ["same"]
    place.query()
    assert shown(place, line, line, line, line) == ["same"]


def test_the_rest_of_a_long_line_goes_with_its_beginning() -> None:
    place, lines = LogPlace({}, Clock()), ["2026-01-02T10:00:05Z begin", "rest", "2026-01-02T10:00:06Z other"]
    place.query()
    assert shown(place, "no time", *lines) == ["no time", "begin", "rest", "other"]
    place.query()
    assert shown(place, "why not", *lines, "2026-99-02T10:00:06Z no time") == ["why not"]
    assert shown(place, "2026-01-02T10:00:06Z new", "rest") == ["new", "rest"]


def test_few_lines_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_place, "SEEN_LINES_MAX", 3)
    place = LogPlace({}, Clock())
    lines = [f"2026-01-02T10:00:{second:02}Z {second}" for second in range(10)]
    lines += [f"2026-01-02T10:00:09Z {number}" for number in "abc"]
    place.query()
    assert len(shown(place, *lines)) == len(lines)
    assert place.query() == {"sinceTime": "2026-01-02T10:00:08Z"}
    assert shown(place, *lines[8:]) == ["b", "c"]
