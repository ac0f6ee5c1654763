"""What the master asks of members, and what it reads of their answers, without the wire's types.

The orders have the names and fields of the commands of `docs/reference/protocol.md`; `master/requests.py`
turns them into messages. Answers are read through Protocols, which the messages fulfil as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.table import Replicas

OpPlace = tuple[int, int]
"""(term, index) of a logged operation."""

OK = "OK"
WAIT = "WAIT"


@dataclass(frozen=True, slots=True)
class StartTabletCopy:
    id: str
    partition: PartitionId
    base: Version
    owner: MemberIndex
    kind: str = "MOVE"
    result: Replicas = ()


@dataclass(frozen=True, slots=True)
class AddLearner:
    id: str
    partition: PartitionId
    base: Version
    destination: MemberIndex
    kind: str = "MOVE"
    result: Replicas = ()


@dataclass(frozen=True, slots=True)
class OpenSession:
    session: str
    partitions: tuple[PartitionId, ...]
    lease_seconds: float
    fragments: bool = True
    renew: bool = False
    destination: MemberIndex = -1
    engine: str = ""
    bytes_per_second: int = 0


@dataclass(frozen=True, slots=True)
class CloseSession:
    session: str


@dataclass(frozen=True, slots=True)
class CopyItem:
    partition: PartitionId
    source_generation: int
    generation: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FetchDirect:
    session: str
    source: MemberIndex
    token: str
    items: tuple[CopyItem, ...]


@dataclass(frozen=True, slots=True)
class Ingest:
    session: str
    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    id: str
    partition: PartitionId


@dataclass(frozen=True, slots=True)
class Accept:
    id: str
    partition: PartitionId
    version: Version
    replicas: Replicas
    last: OpPlace | None


@dataclass(frozen=True, slots=True)
class Abort:
    id: str
    partition: PartitionId


@dataclass(frozen=True, slots=True)
class Fence:
    partition: PartitionId
    term: int
    owner_dead: bool


@dataclass(frozen=True, slots=True)
class DeleteTablet:
    partition: PartitionId
    version: Version


@dataclass(frozen=True, slots=True)
class CreateTablet:
    partition: PartitionId
    base: Version


@dataclass(frozen=True, slots=True)
class LockState:
    id: str
    state: str
    stamp: int
    member_list_version: int


@dataclass(frozen=True, slots=True)
class UnlockState:
    id: str


Order = (
    StartTabletCopy
    | AddLearner
    | OpenSession
    | CloseSession
    | FetchDirect
    | Ingest
    | HandOver
    | Accept
    | Abort
    | Fence
    | DeleteTablet
    | LockState
    | UnlockState
    | CreateTablet
)


class Op(Protocol):
    @property
    def term(self) -> int: ...
    @property
    def index(self) -> int: ...


def place(op: Op) -> OpPlace:
    """An operation's place as a tuple, which compares as the log orders."""
    return (op.term, op.index)


class SessionTablet(Protocol):
    @property
    def partition(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class Session(Protocol):
    @property
    def token(self) -> str: ...
    @property
    def tablets(self) -> Sequence[SessionTablet]: ...


class Result(Protocol):
    @property
    def code(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def wait_ms(self) -> int: ...
    @property
    def last(self) -> Op | None: ...
    @property
    def generation(self) -> int: ...
    @property
    def session(self) -> Session | None: ...


class RowReport(Protocol):
    @property
    def partition(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def replicas(self) -> Replicas: ...


class TabletReport(Protocol):
    @property
    def partition(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def promised(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class LearnerReport(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def destination(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def lag(self) -> int: ...


class CopyReport(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def error(self) -> str: ...


class FetchReport(Protocol):
    @property
    def session(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def copied_bytes(self) -> int: ...
    @property
    def error(self) -> str: ...
    @property
    def tasks(self) -> int: ...
    @property
    def retries(self) -> int: ...


class SessionReport(Protocol):
    @property
    def session(self) -> str: ...
    @property
    def ended(self) -> str: ...


class Stats(Protocol):
    @property
    def disk_free_bytes(self) -> int: ...


class SilentPeer(Protocol):
    @property
    def member(self) -> int: ...
    @property
    def silent_ms(self) -> int: ...


class Report(Protocol):
    """What a member says of itself in each answer.

    `pod_uid` is the pod that its process runs in, `boot_id` the running kernel of its node; empty when it
    does not know. `started_seconds`: Unix seconds of its node's clock at some moment between its start and
    its first answer.

    `tablets` and `dropped` are what changed after its report `base` (0: all there is); this one is `number`.
    """

    @property
    def code(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def pod_uid(self) -> str: ...
    @property
    def boot_id(self) -> str: ...
    @property
    def started_seconds(self) -> float: ...
    @property
    def epoch(self) -> int: ...
    @property
    def stamp(self) -> int: ...
    @property
    def member_list_version(self) -> int: ...
    @property
    def results(self) -> Sequence[Result]: ...
    @property
    def rows(self) -> Sequence[RowReport]: ...
    @property
    def number(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def tablets(self) -> Sequence[TabletReport]: ...
    @property
    def dropped(self) -> Sequence[PartitionId]: ...
    @property
    def accepted(self) -> Sequence[RowReport]: ...
    @property
    def learners(self) -> Sequence[LearnerReport]: ...
    @property
    def copies(self) -> Sequence[CopyReport]: ...
    @property
    def fetches(self) -> Sequence[FetchReport]: ...
    @property
    def silent(self) -> Sequence[SilentPeer]: ...
    @property
    def unserved(self) -> Sequence[int]: ...
    @property
    def stats(self) -> Stats: ...
    @property
    def sessions(self) -> Sequence[SessionReport] | None: ...
    @property
    def staged(self) -> Sequence[str]: ...
