"""Copy waves: which tablets share one snapshot, and who carries the bytes (docs/copy.md).

A wave is one session from one source to one destination. It is opened for all migrations of that pair that
need a copy, copied by Spark or by the destination itself, ingested, and closed at both ends.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from stele.core.ids import MemberIndex, PartitionId
from stele.core.orders import (
    OK,
    WAIT,
    CloseSession,
    CopyItem,
    FetchDirect,
    FetchReport,
    Ingest,
    OpenSession,
    Order,
    Result,
    Session,
)

SESSION_LEASE_SECONDS = 120.0
"""How long a source keeps a snapshot that nobody asks for."""

SPARK_PATIENCE_SECONDS = 60.0
"""After Spark failed for a destination, the next waves to it are copied directly for so long."""

WARM_THRESHOLD_BYTES = 1 << 20
"""A driver that runs already is worth using from here on (Auto)."""


class Stage(Enum):
    OPEN = "OPEN"
    COPY = "COPY"
    INGEST = "INGEST"
    CLOSE = "CLOSE"
    CLOSED = "CLOSED"


class Engine(Enum):
    SPARK = "Spark"
    DIRECT = "Direct"


@dataclass(frozen=True, slots=True)
class Job:
    """What the copier tells of one Spark job. `failure` is the code, such as NO_EXECUTORS."""

    state: str
    copied_bytes: int = 0
    failure: str = ""


@dataclass(slots=True)
class Wave:
    """`partitions` maps each partition to the id of its migration; one that was aborted is taken out.

    Who copies (`engine`) is chosen once the source told how much there is to copy. With `fragments` False the
    source sends each tablet as one.
    """

    session: str
    source: MemberIndex
    destination: MemberIndex
    partitions: dict[PartitionId, str]
    generations: Mapping[PartitionId, int]
    started_seconds: float
    fragments: bool = True
    engine: Engine | None = None
    engine_reason: str = ""
    stage: Stage = Stage.OPEN
    token: str = ""
    items: tuple[CopyItem, ...] = ()
    copied_bytes: int = 0
    fetch_sent: bool = False
    failure: str = ""
    closing: set[MemberIndex] = field(default_factory=set)

    def orders(self) -> list[tuple[MemberIndex, Order]]:
        if self.stage is Stage.OPEN:
            wanted = tuple(sorted(self.partitions))
            return [(self.source, OpenSession(self.session, wanted, SESSION_LEASE_SECONDS, self.fragments))]
        if self.stage is Stage.COPY and self.engine is Engine.DIRECT and not self.fetch_sent:
            return [(self.destination, FetchDirect(self.session, self.source, self.token, self.items))]
        if self.stage is Stage.INGEST:
            return [(self.destination, Ingest(self.session, tuple(sorted(self.partitions))))]
        if self.stage is Stage.CLOSE:
            return [(member, CloseSession(self.session)) for member in sorted(self.closing)]
        return []

    @property
    def wants_job(self) -> bool:
        """Whether the copier should work on it."""
        return self.stage is Stage.COPY and self.engine is Engine.SPARK

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    def part_of(self, ids: Collection[str]) -> int:
        """Bytes copied so far for the migrations with these ids, by their share in the wave."""
        sizes = {item.partition: item.bytes for item in self.items}
        mine = sum(sizes.get(partition, 0) for partition, id in self.partitions.items() if id in ids)
        return self.copied_bytes * mine // max(1, self.bytes)

    def answer(self, member: MemberIndex, order: Order, result: Result) -> None:
        if result.code == WAIT:
            return
        match order:
            case OpenSession() if self.stage is Stage.OPEN:
                self._opened(result.code, result.detail, result.session)
            case FetchDirect() if self.stage is Stage.COPY:
                self.fetch_sent = result.code == OK
                if result.code != OK:
                    self.fail(f"{result.code}: {result.detail}")
            case Ingest() if self.stage is Stage.INGEST:
                if result.code == OK:
                    self.close()
                else:
                    self.fail(f"{result.code}: {result.detail}")
            case CloseSession():
                self._closed(member)
            case _:
                return

    def _opened(self, code: str, detail: str, session: Session | None) -> None:
        if code != OK or session is None:
            self.fail(f"{code}: {detail}")
            return
        self.token = session.token
        self.items = tuple(
            CopyItem(each.partition, each.generation, self.generations[each.partition], each.bytes)
            for each in session.tablets
            if each.partition in self.partitions
        )
        missing = self.partitions.keys() - {item.partition for item in self.items}
        if missing:
            self.fail(f"NOT_IN_SESSION: the source did not snapshot {sorted(missing)}")
        else:
            self.stage = Stage.COPY

    def heard_fetch(self, report: FetchReport | None) -> None:
        """What the destination tells of its own copying."""
        if self.stage is not Stage.COPY or self.engine is not Engine.DIRECT or not self.fetch_sent:
            return
        if report is None:
            self.fetch_sent = False
            return
        self._progress(report.state, report.copied_bytes, report.error)

    def heard_job(self, job: Job | None) -> None:
        """What the copier tells of the Spark job."""
        if job is not None and self.wants_job:
            self._progress(job.state, job.copied_bytes, job.failure)

    def _progress(self, state: str, copied_bytes: int, error: str) -> None:
        self.copied_bytes = max(self.copied_bytes, copied_bytes)
        if state == "DONE":
            self.stage = Stage.INGEST
        elif state == "FAILED":
            self.fail(error or "FAILED")

    def fail(self, reason: str) -> None:
        """Give the session up; the migrations are told by whoever looks at `failure`."""
        self.failure = reason
        self.close()

    def close(self) -> None:
        if self.stage in (Stage.CLOSE, Stage.CLOSED):
            return
        self.stage = Stage.CLOSE
        self.closing = {self.source, self.destination}

    def _closed(self, member: MemberIndex) -> None:
        self.closing.discard(member)
        if not self.closing and self.stage is Stage.CLOSE:
            self.stage = Stage.CLOSED

    def forget_gone(self, gone: Mapping[MemberIndex, str]) -> None:
        """A member that is gone (by name) needs no goodbye; while copying its loss ends the wave."""
        lost = {self.source, self.destination}.intersection(gone)
        if lost and self.stage in (Stage.OPEN, Stage.COPY, Stage.INGEST):
            self.fail(f"MEMBER_GONE: {gone[min(lost)]}")
        for member in lost:
            self._closed(member)

    def drop(self, partition: PartitionId) -> None:
        """A migration of it was aborted; a wave without any ends."""
        self.partitions.pop(partition, None)
        if not self.partitions:
            self.close()


def choose_engine(
    wish: str,
    needed_bytes: int,
    threshold_bytes: int,
    *,
    warm: bool,
    copier_problem: str,
    spark_failure: str,
) -> tuple[Engine, str]:
    """Who copies, and why, when so many bytes are to go to the destination at once.

    `copier_problem` and `spark_failure` are empty when there is none.
    """
    if wish == "Direct":
        return Engine.DIRECT, "spec.migration.engine is Direct"
    if spark_failure:
        return Engine.DIRECT, f"Spark failed for this destination: {spark_failure}"
    if copier_problem:
        return Engine.DIRECT, f"Spark cannot be used: {copier_problem}"
    if wish == "Spark":
        return Engine.SPARK, "spec.migration.engine is Spark"
    limit = min(threshold_bytes, WARM_THRESHOLD_BYTES) if warm else threshold_bytes
    state = "a warm driver" if warm else "a cold driver"
    if needed_bytes >= limit:
        return Engine.SPARK, f"{needed_bytes} bytes are to be copied at once, at least {limit} for {state}"
    return Engine.DIRECT, f"{needed_bytes} bytes are to be copied at once, less than {limit} for {state}"
