"""What happened, in order: for the story of a failure, and to compare two runs of one seed."""

import hashlib
import logging
import re
from collections import Counter
from dataclasses import dataclass

from tests.fakes.loop import Clock

ANYWHERE = -1
STORY_LINES_MAX = 120
LINE_CHARACTERS_MAX = 400

REPEATED_MIN = 4
"""What is said more rarely is told each time."""

_PLACE = re.compile(r"(?:demo|client)-\d+")
_PARTITION = re.compile(r"partition (\d+)")


@dataclass(slots=True)
class Line:
    """`partition` is ANYWHERE for what concerns all of them."""

    seconds: float
    place: str
    text: str
    partition: int

    def __str__(self) -> str:
        return f"{self.seconds:9.4f} {self.place:10} {self.text}"


class Trace(logging.Handler):
    """Collects lines of the world, and what the product logs; the name of `folder` is left out of them."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.folder = ""
        self.lines: list[Line] = []
        self.faults: Counter[str] = Counter()
        self.covered: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()

    def note(self, place: str, text: str, partition: int = ANYWHERE) -> None:
        self.lines.append(Line(self._clock.now, place, text, partition))

    def fault(self, name: str, *places: str) -> None:
        """Something was broken on purpose, at a place or between two."""
        self.faults[name] += 1
        self.note(places[0] if places else "network", f"! {name} {places[1:]}")

    def cover(self, state: str) -> None:
        self.covered[state] += 1

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().replace(self.folder, "") if self.folder else record.getMessage()
        found = _PARTITION.search(text)
        process = self._clock.current
        place = "world" if process is None else process.name
        self.note(place, text, ANYWHERE if found is None else int(found.group(1)))

    def story(self, partition: int, key: bytes = b"") -> list[str]:
        """What concerns one partition, or all when it is ANYWHERE; the last lines of it.

        Left out are places that had nothing to do with it, operations on other keys than `key` (all,
        when there is none), and what was said again and again.
        """
        lines = [each for each in self.lines if self._concerns(each, partition, key)]
        if partition != ANYWHERE:
            strangers = self._places() - {each.place for each in lines if each.partition == partition}
            lines = [each for each in lines if each.partition == partition or not _is_of(each, strangers)]
        told = _without_repetitions(lines)
        left_out = len(told) - STORY_LINES_MAX
        head = [f"... {left_out} earlier lines are left out"] if left_out > 0 else []
        return head + told[-STORY_LINES_MAX:]

    @staticmethod
    def _concerns(line: Line, partition: int, key: bytes) -> bool:
        if ANYWHERE in (partition, line.partition):
            return True
        other = line.place.startswith("client") and not (key and repr(key) in line.text)
        return line.partition == partition and not other

    def _places(self) -> set[str]:
        """Members and clients: those without a line of the partition have no part in its story."""
        return {each.place for each in self.lines if each.place.startswith(("demo-", "client"))}

    def digest(self) -> str:
        """Equal for equal histories."""
        found = hashlib.sha256()
        for line in self.lines:
            found.update(str(line).encode())
        return found.hexdigest()


def _is_of(line: Line, places: set[str]) -> bool:
    """Whether it tells of these places alone."""
    told = {line.place, *_PLACE.findall(line.text)}
    named = {each for each in told if each.startswith(("demo-", "client"))}
    return bool(named) and named <= places


def _shortened(text: str) -> str:
    """Lists grow long: their ends tell what happened last."""
    left_out = len(text) - LINE_CHARACTERS_MAX
    half = LINE_CHARACTERS_MAX // 2
    return text if left_out <= 0 else f"{text[:half]} ... {left_out} characters ... {text[-half:]}"


def _without_repetitions(lines: list[Line]) -> list[str]:
    """What one place says again and again is told once, with how often and until when."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        found.setdefault((line.place, line.text), []).append(line)
    told = []
    for line in lines:
        same = found[line.place, line.text]
        if len(same) < REPEATED_MIN:
            told.append(_shortened(str(line)))
        elif line is same[0]:
            told.append(f"{line} ({len(same)} times, until {same[-1].seconds:.4f})")
    return told
