"""How fast the log of one tablet grows, as a moving average."""

from dataclasses import dataclass

AVERAGED_SECONDS = 5.0
"""Seconds over which the average mostly extends."""


@dataclass(slots=True)
class WriteRate:
    """Measured whenever a report has new positions, about once a second."""

    appended_bytes: int
    measured_at: float
    bytes_per_second: float = 0.0

    def measure(self, appended_bytes: int, now: float) -> None:
        """Count what was appended since the last measurement. A log that was replaced begins at 0 again."""
        seconds = now - self.measured_at
        if seconds > 0.0:
            grown = max(0, appended_bytes - self.appended_bytes)
            weight = min(1.0, seconds / AVERAGED_SECONDS)
            self.bytes_per_second += (grown / seconds - self.bytes_per_second) * weight
            self.appended_bytes, self.measured_at = appended_bytes, now
