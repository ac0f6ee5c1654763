"""What happened, in order: for the story of a failure, and to compare two runs of one seed."""

import hashlib
import logging
import re
from collections import Counter
from dataclasses import dataclass

from tests.simulation.loop import Clock

ANYWHERE = -1
STORY_LINES_MAX = 120

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

    def story(self, partition: int) -> list[str]:
        """The last lines that concern one partition, or all when it is ANYWHERE."""
        wanted = {ANYWHERE, partition}
        lines = [each for each in self.lines if partition == ANYWHERE or each.partition in wanted]
        left_out = len(lines) - STORY_LINES_MAX
        head = [f"... {left_out} earlier lines are left out"] if left_out > 0 else []
        return head + [str(each) for each in lines[-STORY_LINES_MAX:]]

    def digest(self) -> str:
        """Equal for equal histories."""
        found = hashlib.sha256()
        for line in self.lines:
            found.update(str(line).encode())
        return found.hexdigest()
