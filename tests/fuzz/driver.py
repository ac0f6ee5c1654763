"""Feeds inputs to decoders, and finds what must not be: other errors than a decoder's own, long work, memory.

Input number n of a target is made from the seed n alone, so a seed is all that a finding needs.
"""

import ctypes
import gc
import resource
import signal
import time
import traceback
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from types import FrameType
from typing import Self

from stele.errors import SteleError
from tests.fuzz.mutate import Codec, Mutator

SECONDS_MAX = 1.0
"""CPU time of one input; it is found between one and two times of that."""
MEMORY_SPARE = 1024 * 1024
"""Bytes of memory that each input may take; besides, `Target.memory_factor` for each of its bytes."""
MEASURED_EACH = 61
"""One of so many inputs is decoded once more under tracemalloc, which takes much longer."""
MEASURED_TOGETHER = 64
"""So many of them at once: until Python 3.12.5 each stop of tracemalloc leaks some 10 KiB, 48 bytes for each
line of code that has allocated (python/cpython#121390), which would count as growth."""
GROWTH_MAX = 48 * 1024 * 1024
"""Bytes by which the process may grow after the first inputs of a target."""
WARM_MIN, WARM_MAX = 500, 50_000
"""How many first inputs: a tenth, but at least and at most so many."""
CHECKED_EACH = 2_048
FINDINGS_MAX = 10
PROGRESS_SECONDS = 10.0
_PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Target:
    """Something that reads bytes of others.

    `run` may raise `refusals`, and nothing else. `samples` are valid inputs. `seal` puts what was made into
    what a decoder checks first, such as a checksum. `memory_factor`: bytes of memory for each byte.
    """

    name: str
    run: Callable[[bytes], object]
    samples: Callable[[], Sequence[bytes]]
    refusals: tuple[type[Exception], ...] = (SteleError,)
    codec: Codec | None = None
    tokens: tuple[bytes, ...] = ()
    seal: Callable[[bytes, Random], bytes] | None = None
    memory_factor: int = 64
    memory_spare: int = MEMORY_SPARE

    @cached_property
    def _mutator(self) -> Mutator:
        return Mutator(self.samples(), self.codec, self.tokens)

    def input_of(self, seed: int) -> bytes:
        """Return the input of a seed."""
        rng = Random(seed)
        made = self._mutator.make(rng)
        return made if self.seal is None else self.seal(made, rng)


@dataclass(frozen=True)
class Finding:
    """What an input did that it must not. `place` is equal for findings of one cause."""

    target: str
    seed: int
    place: str
    text: str

    def __str__(self) -> str:
        again = f"python -m tests.fuzz {self.target} --only {self.seed}"
        return f"{self.target}: {self.place}\n{self.text.rstrip()}\nagain: {again}"


@dataclass
class Outcome:
    """What became of the inputs of one target; `peak_factor` and `growth` are the greatest measured."""

    target: str
    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    measured: int = 0
    peak_factor: float = 0.0
    growth: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)

    def __str__(self) -> str:
        rate = self.inputs / max(self.seconds, 1e-9)
        memory = f"peak {self.peak_factor:.0f} x, growth {self.growth / 2**20:.1f} MiB"
        refused = f"{100 * self.refused / max(self.inputs, 1):.0f}% refused"
        head = f"{self.target:14} {self.inputs:9} inputs {rate:8.0f}/s, {refused}"
        return f"{head}, {memory}, {len(self.findings)} findings"


class TooLongError(BaseException):
    """Raised in a decoder that takes too long: no decoder catches it."""


class Watchdog:
    """Interrupts work on one input for longer than `seconds` of CPU time; `at` is the input, None between."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.at: int | None = None
        self._seen: int | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGVTALRM, self._tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds, self._seconds)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._before)

    def _tick(self, _number: int, _frame: FrameType | None) -> None:
        late, self._seen = self.at is not None and self.at == self._seen, self.at
        if late:
            self.at = self._seen = None
            raise TooLongError


class Fuzzer:
    """Runs one target."""

    def __init__(
        self, target: Target, *, growth_max: int = GROWTH_MAX, seconds_max: float = SECONDS_MAX
    ) -> None:
        self._target, self._growth_max = target, growth_max
        self._watchdog = Watchdog(seconds_max)
        self._rss = 0
        self._sampled: list[int] = []
        self.outcome = Outcome(target.name)

    def run(
        self,
        first: int,
        count: int,
        until: float = float("inf"),
        say: Callable[[str], None] = lambda text: None,
    ) -> Outcome:
        """Run inputs `first` to `first + count - 1`, until a monotonic time or too many findings."""
        outcome, began = self.outcome, time.monotonic()
        warm, told = first + min(max(count // 10, WARM_MIN), WARM_MAX, count // 2), began
        with self._watchdog:
            for seed in range(first, first + count):
                self._one(seed)
                outcome.inputs += 1
                if seed == warm:
                    # Memory that is free but held would hide as much growth.
                    self._rss = _trimmed_rss()
                if outcome.inputs % CHECKED_EACH:
                    continue
                now = time.monotonic()
                outcome.seconds = now - began
                self._check_growth(seed)
                if now - told > PROGRESS_SECONDS:
                    told = now
                    say(str(outcome))
                if now > until or len(outcome.findings) >= FINDINGS_MAX:
                    break
            self._measure()
            self._check_growth(first + outcome.inputs - 1)
        outcome.seconds = time.monotonic() - began
        return outcome

    def _one(self, seed: int) -> None:
        data, watchdog, refusals = self._target.input_of(seed), self._watchdog, self._target.refusals
        try:
            watchdog.at = seed
            self._target.run(data)
            watchdog.at = None
        except refusals:
            self.outcome.refused += 1
        except (Exception, TooLongError) as error:  # noqa: BLE001  that is what is looked for
            watchdog.at = None
            text = "".join(traceback.format_exception(error))
            self._found(seed, _place(error), text[-4_000:])
            return
        watchdog.at = None
        if seed % MEASURED_EACH == 0:
            self._sampled.append(seed)
            if len(self._sampled) >= MEASURED_TOGETHER:
                self._measure()

    def _measure(self) -> None:
        """Measure the memory of the inputs that were sampled since the last time."""
        sampled, self._sampled = self._sampled, []
        inputs = [self._target.input_of(seed) for seed in sampled]
        for seed, data, peak in zip(sampled, inputs, peaks_of(self._target, inputs), strict=True):
            self.outcome.measured += 1
            if len(data) > 1_000:
                self.outcome.peak_factor = max(self.outcome.peak_factor, peak / len(data))
            most = self._target.memory_spare + self._target.memory_factor * len(data)
            if peak > most:
                text = f"{len(data)} bytes take {peak} of memory; expected at most {most}"
                self._found(seed, "memory of one input", text)

    def _check_growth(self, seed: int) -> None:
        if not self._rss:
            return
        grown = _rss() - self._rss
        if grown > self._growth_max:
            grown = _trimmed_rss() - self._rss  # What was freed is no growth.
        self.outcome.growth = max(self.outcome.growth, grown)
        if grown > self._growth_max:
            text = f"{grown} bytes more than after the first inputs; expected at most {self._growth_max}"
            self._found(seed, "growth of the process", text)

    def _found(self, seed: int, place: str, text: str) -> None:
        self.outcome.findings.setdefault(place, Finding(self._target.name, seed, place, text))


def peaks_of(target: Target, inputs: Sequence[bytes]) -> list[int]:
    """Return the most memory that decoding each takes at once, in bytes."""
    peaks = []
    tracemalloc.start()
    try:
        for data in inputs:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            with suppress(Exception):
                target.run(data)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return peaks


def _place(error: BaseException) -> str:
    if isinstance(error, TooLongError):
        return "takes too long"
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    where = f" in {Path(last.filename).name}:{last.lineno}" if last else ""
    return f"{type(error).__name__}{where}"


def _trimmed_rss() -> int:
    """Return the same, once what is free was given back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _rss()


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
