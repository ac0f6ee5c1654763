"""Transactions across partitions: two phases in the logs of the partitions (docs/internals/transactions.md).

All functions are pure: what a partition has stored about a transaction goes in, an answer and what to log as
one operation come out. Each message may be lost, repeated or late, and each process may stop between any two
steps: everything that must outlive it is in a log before it is answered.

- *Prepare* locks keys at a participant: the log has an `Intent` with the changes to be.
- *Decide* runs the last part at the coordinator, the participant with the highest number, and logs its
  changes together with the `Outcome`. That is the commit point.
- *End* carries the verdict to the other participants: changes are applied, the intent goes, an `Outcome`
  stays.
- *Ask* comes from a participant that was left alone: the coordinator logs that the transaction is aborted,
  unless it has an outcome, and only then answers (presumed abort).

Participants are prepared in ascending order, one after the other, so no two transactions wait for each other.
An `Outcome` keeps a late or repeated message from doing anything again. It stays until a `Mark` covers the
transaction: from then on the mark does that. Time alone never removes either.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from stele.errors import Corrupt

INTENTS_MAX = 1024
"""Most transactions that hold locks in one partition; further ones are refused."""
INTENTS_BYTES_MAX = 32 * 1024 * 1024
"""Most bytes of their keys and changes."""
ASK_SECONDS = 2.0
"""Age of an intent from which on its owner asks the coordinator, when the originator is gone."""
TRANSACTION_SECONDS_MAX = 15.0
"""A transaction that is not prepared after this time is aborted by its originator; to decide it may take as
long again.
"""
ASK_LIVE_SECONDS = TRANSACTION_SECONDS_MAX + 5.0
"""The same age while the originator is connected: it usually decides, or aborts, before."""


class TxId(NamedTuple):
    """Number of a transaction of one process: `incarnation` counts the starts of that member."""

    member: str
    incarnation: int
    number: int


class Mark(NamedTuple):
    """What a partition knows of an originator: all its transactions before this position are over.

    Those of this incarnation are over at every partition; those of earlier ones have no process any more that
    could go on with them.
    """

    incarnation: int
    number: int


class Verdict(IntEnum):
    ABORT = 0
    COMMIT = 1


UserKey = tuple[bytes, bytes]
"""(keyspace, key)"""
UserChange = tuple[bytes, bytes, bytes | None, int]
"""(keyspace, key, value or None for a removal, expire_at_ms)"""


class Intent(NamedTuple):
    """A prepared part. `history` is that of the coordinator's partition, `participants` are all of them.

    The part was evaluated at `now_ms` with `ttl_ms`; as its keys are locked, it gives the same replies again.
    """

    coordinator: int
    history: bytes
    participants: tuple[int, ...]
    keys: tuple[UserKey, ...]
    changes: tuple[UserChange, ...]
    now_ms: int
    ttl_ms: int

    @property
    def size(self) -> int:
        """Bytes of the keys and changes."""
        size = sum(len(keyspace) + len(key) for keyspace, key in self.keys)
        return size + sum(len(key) + len(value or b"") for _, key, value, _ in self.changes)


class Outcome(NamedTuple):
    """A verdict that is final. At the coordinator, `participants` are those that may not know it yet.

    `reply` is the encoded reply of the coordinator's part, if it was short.
    """

    verdict: Verdict
    participants: tuple[int, ...] = ()
    reply: bytes = b""


class Part(NamedTuple):
    """What Prepare and Decide say besides the commands."""

    id: TxId
    coordinator: int
    history: bytes
    participants: tuple[int, ...]
    keys: tuple[UserKey, ...]


class Status(IntEnum):
    """PREPARED, REFUSED: the answer has the reply of the part; a refused part does nothing, now or later.

    OVER: the message is late; what became of the transaction is not known here any more. UNKNOWN: this
    partition has lost its data since the transaction began. DONE: the verdict is in effect here. LOST: it is
    final here, and the part that it commits is gone: this partition has lost what it had prepared.
    """

    PREPARED = 0
    REFUSED = 1
    COMMITTED = 2
    ABORTED = 3
    OVER = 4
    UNKNOWN = 5
    DONE = 6
    LOST = 7


class Ledger(Protocol):
    """What one partition has logged, its uncommitted operations included."""

    @property
    def history(self) -> bytes:
        """Return a name of this partition's data, which it loses with the data; b"" before it is named."""
        ...

    def intent(self, id: TxId) -> Intent | None: ...
    def outcome(self, id: TxId) -> Outcome | None: ...
    def mark(self, member: str) -> Mark | None: ...


class Write(NamedTuple):
    """A new or removed (None) intent or outcome of a transaction, or a mark of its originator."""

    id: TxId
    value: Intent | Outcome | None
    of: type[Intent] | type[Outcome]


class Ran(NamedTuple):
    """Result of evaluating a part: the reply and the changes; or why it cannot run, as a `refused` reply."""

    reply: Any
    changes: tuple[UserChange, ...] = ()
    refused: bool = False
    remembered: bytes = b""
    now_ms: int = 0
    ttl_ms: int = 0


class Step(NamedTuple):
    """An answer, sent once the rest is committed: one operation with the writes and changes, if any."""

    status: Status
    reply: Any = None
    writes: tuple[Write, ...] = ()
    changes: tuple[UserChange, ...] = ()


Run = Callable[[Intent | None], Ran]
"""Evaluates a part, with the time of its intent if it has one."""


def covers(mark: Mark | None, id: TxId) -> bool:
    """Return whether the transaction is over for this partition, by its originator's mark."""
    return mark is not None and (id.incarnation, id.number) < mark


def settled(ledger: Ledger, id: TxId) -> bool:
    """Return whether a Prepare or Decide does nothing any more, so that it needs no lock."""
    return covers(ledger.mark(id.member), id) or ledger.outcome(id) is not None


def prepare(ledger: Ledger, part: Part, run: Run) -> Step:
    """Lock the keys of a part; no other transaction may hold them. A repeated one gives the same answer."""
    if settled(ledger, part.id):
        return Step(Status.OVER)
    intent = ledger.intent(part.id)
    ran = run(intent)
    if intent is not None:
        return Step(Status.PREPARED, ran.reply)
    if ran.refused:
        return Step(Status.REFUSED, ran.reply)
    intent = Intent(
        part.coordinator, part.history, part.participants, part.keys, ran.changes, ran.now_ms, ran.ttl_ms
    )
    return Step(Status.PREPARED, ran.reply, (Write(part.id, intent, Intent),))


def decide(ledger: Ledger, part: Part, run: Run) -> Step:
    """Run the coordinator's part and decide, once: all others are prepared.

    A refusal is logged, too: a repeated message must not succeed after the others were told to abort.
    """
    known = ledger.outcome(part.id)
    if known is not None:
        return Step(_status(known), known.reply)
    if ledger.history != part.history:
        return Step(Status.UNKNOWN)
    if covers(ledger.mark(part.id.member), part.id):
        return Step(Status.OVER)
    ran = run(None)
    if ran.refused:
        return Step(Status.REFUSED, ran.reply, (Write(part.id, Outcome(Verdict.ABORT), Outcome),))
    others = tuple(each for each in part.participants if each != part.coordinator)
    outcome = Outcome(Verdict.COMMIT, others, ran.remembered)
    return Step(Status.COMMITTED, ran.reply, (Write(part.id, outcome, Outcome),), ran.changes)


def ask(ledger: Ledger, id: TxId, history: bytes) -> Step:
    """Return the verdict; a transaction without one is aborted first.

    A partition that lost its data cannot know that there was none.
    """
    known = ledger.outcome(id)
    if known is not None:
        return Step(_status(known), known.reply)
    if ledger.history != history:
        return Step(Status.UNKNOWN)
    if covers(ledger.mark(id.member), id):
        return Step(Status.OVER)
    return Step(Status.ABORTED, writes=(Write(id, Outcome(Verdict.ABORT), Outcome),))


def recall(ledger: Ledger, id: TxId) -> Step:
    """Return the verdict that a participant knows, UNKNOWN if it knows none; nothing is decided by asking."""
    outcome = ledger.outcome(id)
    return Step(Status.UNKNOWN if outcome is None else _status(outcome))


def end(ledger: Ledger, id: TxId, verdict: Verdict) -> Step:
    """Put the verdict into effect at a participant, once. Without an intent, a late Prepare does nothing.

    Only what is prepared at all participants is committed: a COMMIT that finds neither an intent nor a sign
    that it was here before tells that this partition has lost data.
    """
    if ledger.outcome(id) is not None:
        return Step(Status.DONE)
    intent, over, writes = ledger.intent(id), covers(ledger.mark(id.member), id), list[Write]()
    if intent is not None:
        writes.append(Write(id, None, Intent))
    if not over:
        writes.append(Write(id, Outcome(verdict), Outcome))
    lost = intent is None and not over and verdict is Verdict.COMMIT
    changes = intent.changes if intent is not None and verdict is Verdict.COMMIT else ()
    return Step(Status.LOST if lost else Status.DONE, writes=tuple(writes), changes=changes)


def told(ledger: Ledger, id: TxId) -> Step:
    """Record at the coordinator that all participants know the verdict."""
    known = ledger.outcome(id)
    if known is None or not known.participants:
        return Step(Status.DONE)
    return Step(Status.DONE, writes=(Write(id, Outcome(known.verdict), Outcome),))


def is_forgettable(id: TxId, outcome: Outcome, mark: Mark) -> bool:
    """Return whether the mark does what the outcome was kept for.

    One of an earlier incarnation may still be asked for, while participants do not know that it committed.
    """
    return covers(mark, id) and (id.incarnation == mark.incarnation or not outcome.participants)


def _status(outcome: Outcome) -> Status:
    return Status.COMMITTED if outcome.verdict is Verdict.COMMIT else Status.ABORTED


class Locks:
    """The keys that intents of one partition hold, in memory; the log has the same as intents."""

    def __init__(self, intents: Iterable[tuple[TxId, Intent]] = (), now: float = 0.0) -> None:
        """`now` is when this owner learned of the intents. Raises Corrupt when two of them lock one key."""
        self._holders: dict[UserKey, TxId] = {}
        self.since: dict[TxId, float] = {}
        self._intents: dict[TxId, tuple[Intent, int]] = {}
        self.bytes = 0
        for id, intent in intents:
            self.take(id, intent, now)

    def __len__(self) -> int:
        return len(self._intents)

    def __iter__(self) -> Iterator[tuple[TxId, Intent, float]]:
        for id, (intent, _) in self._intents.items():
            yield id, intent, self.since[id]

    def __contains__(self, key: UserKey) -> bool:
        return key in self._holders

    @property
    def full(self) -> bool:
        """Whether there is no room for another transaction."""
        return len(self._intents) >= INTENTS_MAX or self.bytes >= INTENTS_BYTES_MAX

    def take(self, id: TxId, intent: Intent, now: float) -> None:
        """Lock the keys of an intent. Raises Corrupt when another one has locked one of them."""
        for key in intent.keys:
            if self._holders.setdefault(key, id) != id:
                raise Corrupt(_two_locks(key, self._holders[key], id))
        size = intent.size
        # What is locked is needed often, what will be changed only once: that is in the log.
        self._intents[id] = intent._replace(changes=()), size
        self.since[id] = now
        self.bytes += size

    def release(self, id: TxId) -> None:
        """Unlock the keys of a transaction."""
        held = self._intents.pop(id, None)
        if held is None:
            return
        del self.since[id]
        self.bytes -= held[1]
        for key in held[0].keys:
            self._holders.pop(key, None)

    def are_free(self, keys: Iterable[UserKey], but: TxId | None = None) -> bool:
        """Return whether no transaction, except for one, has locked any of the keys."""
        return all(self._holders.get(key, but) == but for key in keys)

    def any_in(self, keyspace: bytes) -> bool:
        """Return whether a key of the keyspace is locked; b"" stands for all keyspaces."""
        return bool(self._holders) and (not keyspace or any(each == keyspace for each, _ in self._holders))


def _two_locks(key: UserKey, holder: TxId, id: TxId) -> str:
    names = " and ".join(".".join(map(str, each)) for each in (holder, id))
    return (
        f"key {key[1][:80]!r} of keyspace {key[0].decode(errors='replace')} is locked by two transactions, "
        f"{names}; expected at most one: the stored intents are damaged; copy the tablet from another "
        "replica, or accept a copy of the time before"
    )


class Verb(IntEnum):
    PREPARE = 0
    DECIDE = 1
    ASK = 2
    END = 3


class Send(NamedTuple):
    verb: Verb
    partition: int


class Answered(IntEnum):
    """What the client is told."""

    COMMITTED = 0
    ABORTED = 1
    UNCERTAIN = 2


class Originator:
    """Drives one transaction, from the first Prepare until every participant knows the verdict.

    `next` says what to send, any time again; results come back by `answered` and `lost`. `outcome` is what
    the client may be told, None until then; `over` whether nothing is left to do.
    """

    def __init__(self, participants: Sequence[int]) -> None:
        """`participants` are at least two partitions."""
        *self.others, self.coordinator = sorted(participants)
        self.prepared = 0
        self.verdict: Verdict | None = None
        self.outcome: Answered | None = None
        self.over = False
        self._asking = False
        self._pending: list[int] = []

    @property
    def ended(self) -> bool:
        """Whether every participant knows the verdict, so that a mark may cover the transaction."""
        return self.over and self.verdict is not None

    def next(self) -> list[Send]:
        """Return what to send now: one message until the verdict, then one for each participant."""
        if self.over:
            return []
        if self.verdict is not None:
            return [Send(Verb.END, each) for each in self._pending]
        if self.prepared < len(self.others):
            return [Send(Verb.PREPARE, self.others[self.prepared])]
        return [Send(Verb.ASK if self._asking else Verb.DECIDE, self.coordinator)]

    def answered(self, send: Send, status: Status) -> None:
        """Take the answer to what was sent."""
        if send.verb is Verb.END:
            self._pending = [each for each in self._pending if each != send.partition]
            self.over = not self._pending
        elif send.verb is Verb.PREPARE:
            self._on_vote(status)
        elif status is Status.COMMITTED:
            self._end(Verdict.COMMIT)
        elif status in (Status.REFUSED, Status.ABORTED):
            self._end(Verdict.ABORT)
        else:
            # Nobody knows: the owners of the participants ask until one of them does, or a user decides.
            self.outcome, self.over = Answered.UNCERTAIN, True

    def lost(self, send: Send) -> None:
        """Nobody answered: it may or may not have been done."""
        if send.verb is Verb.PREPARE:
            self._on_vote(Status.OVER)
        elif send.verb is not Verb.END:
            if self._asking:
                self.outcome = Answered.UNCERTAIN
            self._asking = True

    def _on_vote(self, status: Status) -> None:
        if status is Status.PREPARED:
            self.prepared += 1
        else:
            self._end(Verdict.ABORT)

    def _end(self, verdict: Verdict) -> None:
        """Tell every participant that may have prepared."""
        self.verdict = verdict
        if self.outcome is None:
            self.outcome = Answered.COMMITTED if verdict is Verdict.COMMIT else Answered.ABORTED
        self._pending = self.others[: self.prepared + 1]
