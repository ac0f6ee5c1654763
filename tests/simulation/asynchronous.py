"""What clients were told of a keyspace with `replication: Async`, and what of it owners may have lost.

Lists only grow, by tokens that are appended once. A list that was read, and a token that was acknowledged,
are in every later read, but for those of a partition whose owner was lost in between: that may undo the end
of its log, as far as no client was told that it is committed.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stele.adapters.kubernetes.api import CONFIG_MAPS, Kind
from stele.core.control import commands as m
from stele.core.table.table import Partition
from tests.simulation.history import Violation
from tests.simulation.trace import Trace

ONLY_WITH_AN_OWNER = "acknowledged writes are lost only with an owner"
CONFIRMED = "what WAIT confirmed stays"
IN_ORDER = "what was read stays, in its order"
LOST = "an Async write was lost with its owner"


class OwnersLost:
    """When partitions got another owner that the one before had not handed them over to."""

    def __init__(self, rows: Callable[[], Sequence[Partition]], now: Callable[[], float]) -> None:
        self._rows, self._now = rows, now
        self._known: dict[int, Partition] = {}
        self._moves: set[str] = set()
        self._moved: set[tuple[int, int]] = set()
        self.times: defaultdict[int, list[float]] = defaultdict(list)

    def exchanged(self, place: str, request: m.ExchangeRequest, reply: m.ExchangeReply) -> None:
        self.sent(request.commands)

    def sent(self, commands: Sequence[m.Command]) -> None:
        """Note the rows that a hand-over makes."""
        for command in commands:
            if isinstance(command, m.HandOver):
                self._moves.add(command.id)
            elif isinstance(command, m.Accept) and command.id in self._moves:
                self._moved.add((command.row.partition, command.row.version))

    def stored(self, kind: Kind, body: object, gone: bool) -> None:
        """Compare the stored rows with those before."""
        if kind is not CONFIG_MAPS or gone:
            return
        for partition, row in enumerate(self._rows()):
            before = self._known.get(partition)
            other = before is not None and before.owner != row.owner
            if other and (partition, row.version) not in self._moved:
                self.times[partition].append(self._now())
            self._known[partition] = row


@dataclass(slots=True)
class Append:
    """`end` is when it was acknowledged, `confirmed` when WAIT said that it is committed; None for never."""

    token: bytes
    begin: float
    end: float | None = None
    confirmed: float | None = None


@dataclass(slots=True)
class Read:
    """The tokens that were in a list."""

    begin: float
    end: float
    tokens: list[bytes]


@dataclass
class Lists:
    """All that was done to each list."""

    appends: defaultdict[bytes, list[Append]] = field(default_factory=lambda: defaultdict(list))
    reads: defaultdict[bytes, list[Read]] = field(default_factory=lambda: defaultdict(list))

    def check(self, trace: Trace, partition_of: Callable[[bytes], int], lost: OwnersLost) -> None:
        """Raise Violation when more is missing than owners may have lost."""
        for key in sorted(self.appends):
            times = lost.times[partition_of(key)]
            reads = sorted(self.reads[key], key=lambda read: read.begin)
            for read in reads:
                for append in self.appends[key]:
                    if _has_to_show(append, read):
                        _check_shown(trace, key, append, read, times)
            _check_order(trace, key, reads, times)


def _has_to_show(append: Append, read: Read) -> bool:
    return append.end is not None and append.end <= read.begin


def _check_shown(trace: Trace, key: bytes, append: Append, read: Read, times: Sequence[float]) -> None:
    confirmed = append.confirmed is not None and append.confirmed <= read.begin
    trace.checked[CONFIRMED if confirmed else ONLY_WITH_AN_OWNER] += 1
    if append.token in read.tokens:
        return
    text = f"{append} of {key!r} is not in {read}"
    if confirmed:
        raise Violation(CONFIRMED, text, key=key)
    if not any(append.begin <= time <= read.end for time in times):
        raise Violation(ONLY_WITH_AN_OWNER, text, key=key)
    trace.cover(LOST)


def _check_order(trace: Trace, key: bytes, reads: Sequence[Read], times: Sequence[float]) -> None:
    for place, read in enumerate(reads):
        for later in reads[place + 1 :]:
            trace.checked[IN_ORDER] += 1
            length = min(len(read.tokens), len(later.tokens)) if later.begin < read.end else len(read.tokens)
            if read.tokens[:length] == later.tokens[:length]:
                continue
            if not any(read.begin <= time <= max(read.end, later.end) for time in times):
                raise Violation(IN_ORDER, f"{key!r}: {read}, then {later}", key=key)
