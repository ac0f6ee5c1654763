"""The smallest run that still fails: a seed is replayed without some kinds of faults, and for a shorter time.

A kind that is left out changes nothing before its first time: the others begin at the same moments all the
same. So mostly a few kinds are needed, and what is told of them is short.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.simulation.kinds import ENDINGS
from tests.simulation.profile import Profile
from tests.simulation.run import Result, run_profile

REPLAYS_MAX = 30
SECONDS_MAX = 120.0
"""After so many replays, or so much time, what was found so far is good enough."""
SHORTEST_SECONDS = 2.0


@dataclass
class Smaller:
    """`needed` kinds of faults, in `profile`, still break the same rule."""

    profile: Profile
    result: Result
    replays: int = 0

    @property
    def needed(self) -> list[str]:
        return _kinds(self.profile)

    @property
    def command(self) -> str:
        """What `make simulate` is to be told besides the seed and the family."""
        without = ",".join(sorted(self.profile.without))
        return (f' WITHOUT="{without}"' if without else "") + f" UNTIL={self.profile.chaos_seconds:g}"


def _kinds(profile: Profile) -> list[str]:
    """Those that can happen, each once."""
    endings = (profile.ending, ENDINGS[-1]) if profile.ending else ()
    names = dict.fromkeys((*profile.faults, *profile.rates, *endings))
    return [name for name in names if name not in profile.without]


def shrink(profile: Profile, failed: Result) -> Smaller:
    """Replay until nothing more can be left out, or a limit is reached."""
    found = Smaller(profile, failed)
    deadline = time.monotonic() + SECONDS_MAX
    tried: set[tuple[frozenset[str], float]] = set()
    for kept in _attempts(found):
        if found.replays >= REPLAYS_MAX or time.monotonic() > deadline:
            break
        key = (kept.without, kept.chaos_seconds)
        if key in tried:
            continue
        tried.add(key)
        found.replays += 1
        result = run_profile(kept)
        if result.failure and result.rule == failed.rule:
            found.profile, found.result = kept, result
    return found


def _attempts(found: Smaller) -> Iterator[Profile]:
    """Ever smaller parts of what is left at that time are left out; then the time is halved."""
    size = len(_kinds(found.profile))
    while size:
        kinds = _kinds(found.profile)
        for begin in range(0, len(kinds), size):
            part = kinds[begin : begin + size]
            yield replace(found.profile, without=found.profile.without.union(part))
        size //= 2
    while found.profile.chaos_seconds > SHORTEST_SECONDS:
        before = found.profile.chaos_seconds
        yield replace(found.profile, chaos_seconds=before / 2)
        if found.profile.chaos_seconds == before:
            return
