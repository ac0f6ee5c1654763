"""What is measured of the clients in one phase: counts, errors by code, latencies, longest pauses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from e2e.demo.latency import Histogram

READ, WRITE = "reads", "writes"
KINDS = (READ, WRITE)


class Pauses:
    """The longest time without a success: over all clients together, and of the client that waited longest.

    Times are seconds of one monotonic clock. A client counts from its first success on, all together from
    `start`.
    """

    def __init__(self, start: float, last_of: dict[int, float] | None = None) -> None:
        self._last = start
        self._last_of = dict(last_of or {})
        self.longest = 0.0
        self.longest_of_a_client = 0.0

    def success(self, client: int, now: float) -> None:
        """A client's operation succeeded."""
        self.longest, self.longest_of_a_client = (
            max(self.longest, now - self._last),
            max(self.longest_of_a_client, now - self._last_of.get(client, now)),
        )
        self._last = self._last_of[client] = now

    def upto(self, now: float) -> tuple[float, float]:
        """(over all clients, of one client), pauses that are open at `now` included."""
        of_a_client = max((now - each for each in self._last_of.values()), default=0.0)
        return max(self.longest, now - self._last), max(self.longest_of_a_client, of_a_client)

    def carry_on(self) -> Pauses:
        """For the next phase: nothing was measured yet, but a pause that is open goes on."""
        return Pauses(self._last, self._last_of)


@dataclass
class Meter:
    """One kind of operation in one phase."""

    pauses: Pauses
    latencies: Histogram = field(default_factory=Histogram)
    errors: Counter[str] = field(default_factory=Counter)

    def summary(self, now: float, seconds: float) -> dict[str, Any]:
        """Numbers for reports; times in milliseconds, rounded to the microsecond."""
        overall, of_a_client = self.pauses.upto(now)
        return {
            "count": self.latencies.total,
            "per_second": round(self.latencies.total / seconds, 1) if seconds else 0.0,
            "errors": self.errors.total(),
            "errors_by_code": dict(sorted(self.errors.items())),
            "p50_ms": _ms(self.latencies.percentile(50)),
            "p99_ms": _ms(self.latencies.percentile(99)),
            "max_ms": _ms(self.latencies.max_seconds),
            "longest_pause_ms": _ms(overall),
            "longest_pause_of_a_client_ms": _ms(of_a_client),
        }


@dataclass
class PhaseMeasure:
    """All that is measured of the clients in one phase."""

    phase: str
    start: float
    meters: dict[str, Meter]

    @classmethod
    def begin(cls, phase: str, now: float, before: PhaseMeasure | None = None) -> PhaseMeasure:
        """A new phase; open pauses of the one before go on."""
        if before is None:
            return cls(phase, now, {kind: Meter(Pauses(now)) for kind in KINDS})
        return cls(phase, now, {kind: Meter(before.meters[kind].pauses.carry_on()) for kind in KINDS})

    def summary(self, now: float) -> dict[str, Any]:
        """Numbers for reports."""
        seconds = now - self.start
        parts = {kind: meter.summary(now, seconds) for kind, meter in self.meters.items()}
        return {"phase": self.phase, "seconds": round(seconds, 2), **parts}


def total(phases: list[PhaseMeasure], now: float) -> dict[str, Any]:
    """The summary over all phases, of which the last one ends at `now`.

    A pause that was open at the end of a phase went on in the next one and was counted there.
    """
    whole = PhaseMeasure.begin("total", phases[0].start)
    for kind, meter in whole.meters.items():
        meter.pauses = phases[-1].meters[kind].pauses.carry_on()
        for phase in phases:
            part = phase.meters[kind]
            meter.latencies.merge(part.latencies)
            meter.errors.update(part.errors)
            meter.pauses.longest = max(meter.pauses.longest, part.pauses.longest)
            meter.pauses.longest_of_a_client = max(
                meter.pauses.longest_of_a_client, part.pauses.longest_of_a_client
            )
    return whole.summary(now)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
