"""How fast the log of one tablet grows, as a moving average."""

from dataclasses import dataclass

AVERAGED_SECONDS = 5.0
"""Seconds over which the average mostly extends."""

REPORTED_STEP = 8_192
"""Rates are reported in multiples of so many bytes per second: an average changes every second, and a report
has each tablet with another rate."""

OVER_BYTES_PER_SECOND = REPORTED_STEP / 8


@dataclass(slots=True)
class WriteRate:
    """Measured whenever a report has new positions, about once a second."""

    appended_bytes: int
    measured_at: float
    bytes_per_second: float = 0.0
    grew: bool = True

    @property
    def reported(self) -> int:
        """The average, rounded to what reports have."""
        return round(self.bytes_per_second / REPORTED_STEP) * REPORTED_STEP

    @property
    def over(self) -> bool:
        """Whether the log has grown so little for a while that it need not be measured before it grows."""
        return not self.grew and self.bytes_per_second < OVER_BYTES_PER_SECOND

    def measure(self, appended_bytes: int, now: float) -> bool:
        """Count what was appended since the last measurement. A log that was replaced begins at 0 again.

        Returns whether another rate is to be reported.
        """
        before, seconds = self.reported, now - self.measured_at
        if seconds > 0.0:
            grown = max(0, appended_bytes - self.appended_bytes)
            weight = min(1.0, seconds / AVERAGED_SECONDS)
            self.bytes_per_second += (grown / seconds - self.bytes_per_second) * weight
            self.appended_bytes, self.measured_at, self.grew = appended_bytes, now, grown > 0
        return self.reported != before
