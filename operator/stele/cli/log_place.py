"""How far a log has been shown, so that it goes on from there when a connection breaks.

Lines come with their times, which the node writes before them, in the order of the log. Kubernetes takes a
time of whole seconds to begin with: the log is asked for from OVERLAP_SECONDS before the second of the last
line, since the times of two lines may be the other way round, and lines that were shown are left out.
"""

import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

OVERLAP_SECONDS = 1
"""Seconds before that of the last line from which a log is asked for again."""
SEEN_LINES_MAX = 100_000
"""Lines of those seconds that are remembered; others are shown again when a connection breaks."""

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:\d\d) ")


class LogPlace:
    """A place in one log; `first` is the query that begins it. One connection reads at a time.

    `now` returns seconds of a clock that does not jump.
    """

    def __init__(self, first: dict[str, str], now: Callable[[], float]) -> None:
        self._first, self._now = first, now
        self._begun: float | None = None
        self._last: datetime | None = None
        self._seen: dict[datetime, Counter[int]] = {}
        self._left_out: dict[datetime, Counter[int]] = {}
        self._shows = True

    def query(self) -> dict[str, str]:
        """Return the query for the next connection."""
        now = self._now()
        begun = self._begun = now if self._begun is None else self._begun
        self._shows = True
        if self._last is not None:
            self._left_out = {second: Counter(lines) for second, lines in self._seen.items()}
            return {"sinceTime": f"{self._since(self._last):%Y-%m-%dT%H:%M:%SZ}"}
        if now == begun:
            return self._first
        if not self._first:
            return {}
        # No line came yet. All since the first connection count, which may be more than the last ones.
        return {"sinceSeconds": str(int(self._first.get("sinceSeconds", "0")) + int(now - begun) + 1)}

    def unseen(self, line: bytes) -> bytes | None:
        """Return a line without its time, None for one that was shown.

        What has no time belongs to the line before it, which was too long for one piece.
        """
        second, text = _parted(line)
        if second is not None:
            self._shows = not self._take(second, hash(line))
            if self._shows:
                self._note(second, hash(line))
        return text if self._shows else None

    def _take(self, second: datetime, line: int) -> bool:
        """Return whether a line is one of those to be left out, which it then is once less."""
        left = self._left_out.get(second)
        if left is None or not left[line]:
            return False
        left[line] -= 1
        return True

    def _note(self, second: datetime, line: int) -> None:
        if self._last is None or second > self._last:
            self._last = second
            since = self._since(second)
            self._seen = {each: lines for each, lines in self._seen.items() if each >= since}
        elif second < self._since(self._last):
            return
        if sum(map(len, self._seen.values())) < SEEN_LINES_MAX:
            self._seen.setdefault(second, Counter())[line] += 1

    @staticmethod
    def _since(second: datetime) -> datetime:
        return second - timedelta(seconds=OVERLAP_SECONDS)


def _parted(line: bytes) -> tuple[datetime | None, bytes]:
    """Return the second at the beginning of a line, if it has one, and the rest."""
    found = _STAMP.match(line)
    if found is None:
        return None, line
    try:
        second = datetime.fromisoformat((found[1] + found[2]).decode())
    except ValueError:
        return None, line
    return second.astimezone(UTC), line[found.end() :]
