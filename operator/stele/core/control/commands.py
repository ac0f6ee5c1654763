"""Messages between master and member: commands, their results, and the member's report.

docs/reference/protocol.md defines the commands; `wire.control` encodes these values as they are. Decoding
checks types and ranges; `reported` decides whether a report is credible.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from stele.core.control.lengths import LISTED, Name, Numbers, Text
from stele.core.control.member_settings import MemberSettings
from stele.core.copy.states import CopyState, FetchState
from stele.core.formats import FIRST, UNSTATED, FormatRange
from stele.core.kv.keyspaces import KEYSPACES_MAX, Catalog
from stele.core.placement.migration import Type
from stele.core.security.level import InternalTls
from stele.core.table.digests import DIGEST_BYTES, DIGESTS_BYTES_MAX
from stele.core.table.groups import NO_GROUPS, PartitionGroups
from stele.core.table.ids import MAX_REPLICAS, PARTITIONS_MAX, VERSION_MAX
from stele.core.tablet.lifecycle import TabletState
from stele.core.tablet.owner import LearnerState
from stele.errors import SteleError

OK = "OK"
WAIT = "WAIT"


class ClusterState(StrEnum):
    """What the cluster allows.

    Active: joining and migration. NoMigration: joining only. Frozen: neither. Passive: neither, and clients
    can only read.
    """

    ACTIVE = "Active"
    NO_MIGRATION = "NoMigration"
    FROZEN = "Frozen"
    PASSIVE = "Passive"


class ResultCode(StrEnum):
    """Codes of reports, and of results that the master acts upon; members answer others, too."""

    BAD_REQUEST = "BAD_REQUEST"
    BUSY = "BUSY"
    CORRUPT = "CORRUPT"
    NO_SPACE = "NO_SPACE"
    STALE_EPOCH = "STALE_EPOCH"
    STARTING = "STARTING"
    UNKNOWN_FORMAT = "UNKNOWN_FORMAT"
    WRONG_CLUSTER = "WRONG_CLUSTER"
    WRONG_MEMBER = "WRONG_MEMBER"


class ReasonCode(StrEnum):
    """Codes of reasons that the master gives or acts upon."""

    BACKUP_BEHIND = "BACKUP_BEHIND"
    CANCELLED = "CANCELLED"
    COPIER_SILENT = "COPIER_SILENT"
    COPY_FAILED = "COPY_FAILED"
    DISK_ERROR = "DISK_ERROR"
    FAILED = "FAILED"
    FORBIDDEN = "FORBIDDEN"
    LEARNER_LOST = "LEARNER_LOST"
    MEMBER_GONE = "MEMBER_GONE"
    MEMBER_RESTARTED = "MEMBER_RESTARTED"
    MEMBER_STOPPING = "MEMBER_STOPPING"
    NO_SPACE = "NO_SPACE"
    NOT_IN_SESSION = "NOT_IN_SESSION"
    SERVICE_FAILED = "SERVICE_FAILED"
    SESSION_LOST = "SESSION_LOST"
    STALLED = "STALLED"


class Reason(msgspec.Struct, frozen=True):
    """Why something failed: a ReasonCode, or whatever code a member or a copier answered."""

    code: Name
    detail: Text = ""

    @classmethod
    def of(cls, error: SteleError) -> "Reason":
        return cls(error.code, error.text)

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code


INDEX_MAX = 2**31 - 1

USERS_PROBLEM_MAX = 500
"""Characters of why a member cannot read its file of users."""
Index = Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX - 1)]
VersionNumber = Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
Slots = Annotated[tuple[Index | None, ...], msgspec.Meta(max_length=MAX_REPLICAS)]
Ranges = Annotated[tuple[Number, ...], msgspec.Meta(max_length=DIGESTS_BYTES_MAX // DIGEST_BYTES)]
Counted = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class OpId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Position of an operation in a tablet's log; (0, 0) precedes the first."""

    term: int = 0
    index: int = 0


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One row of the table; trailing empty replica indexes are not sent."""

    partition: Number
    version: VersionNumber
    replicas: Slots


class MemberInfo(msgspec.Struct, frozen=True):
    """One entry of the member dictionary. Indexes are never reused."""

    index: Index
    name: Name
    uuid: Name
    address: Name
    lite: bool = False


class StartTabletCopy(msgspec.Struct, frozen=True, tag="StartTabletCopy"):
    """To the destination: prepare to receive this tablet; creates it when it does not exist.

    `kind` of the migration and the resulting row are for services; an older master does not send them.
    """

    id: str
    partition: int
    base: int
    owner: int
    kind: Type = Type.MOVE
    result: Slots = ()


class AddLearner(msgspec.Struct, frozen=True, tag="AddLearner"):
    """To the owner: pin the log, probe the destination as PRE_VOTER, stream, then wait for it.

    `kind` and `result` are as in StartTabletCopy.
    """

    id: str
    partition: int
    base: int
    destination: int
    kind: Type = Type.MOVE
    result: Slots = ()


class _SessionCommand(msgspec.Struct, frozen=True):
    """A command of a copy session, with the session's id."""

    session: str

    @property
    def id(self) -> str:
        return self.session


class OpenSession(_SessionCommand, frozen=True, tag="OpenSession"):
    """To the source of a copy: checkpoint these partitions. The result's `session` describes it.

    Without `fragments`, each tablet is sent as a whole. `bytes_per_second` is 0 without a limit. With
    `renew`, it only renews the lease, and updates rate and engine; it is refused with SESSION_LOST when the
    session is not open.
    """

    partitions: tuple[int, ...]
    lease_seconds: float = 60.0
    fragments: bool = True
    renew: bool = False
    destination: int = -1
    engine: str = ""
    bytes_per_second: Annotated[int, msgspec.Meta(ge=0)] = 0


class CloseSession(_SessionCommand, frozen=True, tag="CloseSession"):
    """To source or destination: drop the session, its checkpoint and its staging directory."""


class CopyItem(msgspec.Struct, frozen=True):
    """One tablet to copy in a session. `generation` is the new one at the destination."""

    partition: int
    source_generation: int
    generation: int
    bytes: int = 0


class FetchDirect(_SessionCommand, frozen=True, tag="FetchDirect"):
    """To the destination: have its transfer process copy these tablets."""

    source: int
    token: str
    items: tuple[CopyItem, ...]


class Ingest(_SessionCommand, frozen=True, tag="Ingest"):
    """To the destination: ingest the finished SST files of this session, tablet by tablet."""

    partitions: tuple[int, ...]


class HandOver(msgspec.Struct, frozen=True, tag="HandOver"):
    """To the owner: freeze durably, drain, bring the destination to the last OpId, and answer with it.

    `base` and `backup` are those of a SWAP: the version of its row, and the member of the row that takes over
    (-1: the learner of this migration does). Refused with BACKUP_BEHIND, without a freeze, while that backup
    is not fed or far behind. An older master does not send them.
    """

    id: str
    partition: int
    base: VersionNumber = 0
    backup: Annotated[int, msgspec.Meta(ge=-1, le=INDEX_MAX)] = -1

    @property
    def swaps(self) -> bool:
        return self.backup >= 0


class Accept(msgspec.Struct, frozen=True, tag="Accept"):
    """Agree durably to a row before it is stored. For a migration, the log must contain `last`."""

    id: str
    row: Row
    last: OpId | None = None


class Abort(msgspec.Struct, frozen=True, tag="Abort"):
    """Roll a migration back: drop the learner, unfreeze the partition, drop a copy."""

    id: str
    partition: int


class Fence(msgspec.Struct, frozen=True, tag="Fence"):
    """Refuse terms below `term` from now on. The answer has the last OpId, or WAIT while a lease is valid.

    With `owner_dead`, leases of the owner's processes up to `dead_incarnation` are not waited for; of all of
    them when that is 0, which says that the owner is asked as well. An older master sends no `id`, and 0 for
    every owner that it knows to be dead.
    """

    partition: int
    term: int
    owner_dead: bool
    id: str = ""
    dead_incarnation: int = 0


class DeleteTablet(msgspec.Struct, frozen=True, tag="DeleteTablet"):
    """Tombstone a tablet, provided that the published row of at least `version` does not name this member.

    It belongs to no operation.
    """

    id: ClassVar[str] = ""
    partition: int
    version: int


class CreateTablet(msgspec.Struct, frozen=True, tag="CreateTablet"):
    """Create an empty tablet for a partition whose data is lost; its row, above `base`, follows.

    An older master sends no `id`.
    """

    partition: int
    base: int
    id: str = ""


class LockState(msgspec.Struct, frozen=True, tag="LockState"):
    """Agree to a new cluster state: start nothing until it is in force, unlocked or expired.

    Refused with STALE_VERSION when the member's stamp or member list differs, MIGRATION_ACTIVE when it takes
    part in a migration.
    """

    id: str
    state: str
    stamp: int
    member_list_version: Counted


class UnlockState(msgspec.Struct, frozen=True, tag="UnlockState"):
    """End the change of the cluster state with this id, whatever its outcome."""

    id: str


Command = (
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


class SessionTablet(msgspec.Struct, frozen=True):
    """State of one tablet in a checkpoint. `versions` is its version vector."""

    partition: int
    generation: int
    applied: OpId
    bytes: int
    versions: Numbers = ()


class SessionInfo(msgspec.Struct, frozen=True):
    """An open session at its source."""

    session: Name
    token: Name
    tablets: Annotated[tuple[SessionTablet, ...], LISTED]


class Result(msgspec.Struct, frozen=True):
    """The result of one command; results are in the order of commands.

    `code` is `OK`, `WAIT` (retry after `wait_ms`), or an error code such as `STALE_VERSION`, `STALE_TERM`,
    `ILLEGAL_STATE`, `ALREADY_IN_PROGRESS`, `MIGRATION_ACTIVE`, `NOT_OWNER`, `NO_SPACE`.
    """

    code: Name = OK
    detail: Text = ""
    wait_ms: int = 0
    last: OpId | None = None
    generation: int = 0
    session: SessionInfo | None = None

    @property
    def reason(self) -> Reason:
        return Reason(self.code, self.detail)


class ClearKeyspaces(msgspec.Struct, frozen=True):
    """Clear these keyspaces in all partitions, wherever no catalog later than `catalog` is in use."""

    catalog: Counted
    keyspaces: Annotated[tuple[str, ...], msgspec.Meta(max_length=KEYSPACES_MAX)]


class ExchangeRequest(msgspec.Struct, frozen=True):
    """One tick of the master for one member.

    `format` is that of the cluster (its features), which the member persists before it uses it. `recipient`
    is empty on first contact: the member then only identifies itself and reports, without adopting or running
    anything. `members` and `rows` are those that this member lacks (`full`: every row). `known` is the number
    of the last report that the master has received, 0 for none. `may_stop` answers `ExchangeReply.stopping`:
    the master has nothing more to move off this member. `without_copy` are partitions of which this member
    has a tablet, or a deleted one, and no member of the row can be reached with a copy: nothing of them is
    purged. An older master sends neither that nor `settings`. `catalog` is there when the member's last
    report has an older version, `clear` for the one member that clears keyspaces. `over_quota` are the
    keyspaces that may not grow; None while the master does not know, and the member keeps what it was told.
    `groups` are there while the member has not reported `groups_version`; `partitions` counts theirs, too. A
    member without them takes nothing. `row_digests` are those of the master's rows (core.table.digests), to
    be compared with the member's when `want_tablets` is set; without them it reports every row.
    """

    format: int
    cluster: str
    epoch: Counted
    recipient: str
    self_index: Annotated[int, msgspec.Meta(ge=-1, le=INDEX_MAX)] = -1
    partitions: Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)] = 0
    replicas: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPLICAS)] = 0
    state: str = ClusterState.ACTIVE
    member_list_version: Counted = 0
    members: tuple[MemberInfo, ...] = ()
    rows: tuple[Row, ...] = ()
    full: bool = False
    commands: tuple[Command, ...] = ()
    want_tablets: bool = False
    known: int = 0
    may_stop: bool = False
    settings: MemberSettings | None = None
    without_copy: tuple[Number, ...] | None = None
    catalog: Catalog | None = None
    clear: ClearKeyspaces | None = None
    over_quota: Annotated[tuple[str, ...], msgspec.Meta(max_length=KEYSPACES_MAX)] | None = None
    groups: PartitionGroups | None = None
    groups_version: Counted = 0
    row_digests: Annotated[bytes, msgspec.Meta(max_length=DIGESTS_BYTES_MAX)] | None = None


class TabletReport(msgspec.Struct, frozen=True, array_like=True):
    """One tablet at a member, in any state (including tombstones).

    `written_bytes_per_second` is the rate at which its log grows; an older member does not report it.
    """

    partition: Number
    state: TabletState
    generation: int
    last: OpId
    applied: OpId
    promised: VersionNumber
    bytes: int
    written_bytes_per_second: int = 0


class LearnerReport(msgspec.Struct, frozen=True):
    """At the owner: a PRE_VOTER or waited-for learner, or the backup that a SWAP waits for.

    `result` is the row that its migration makes; empty when this process does not know it.
    """

    id: Name
    partition: int
    destination: int
    state: LearnerState
    lag: int
    handed_over: OpId | None = None
    result: Slots = ()


class CopyReport(msgspec.Struct, frozen=True):
    """At the destination: a tablet that is being received.

    `result` is as in LearnerReport. `refused`: this member will never accept that row.
    """

    id: Name
    partition: int
    base: int
    state: CopyState
    generation: int = 0
    error: Text = ""
    result: Slots = ()
    refused: bool = False


class FetchReport(msgspec.Struct, frozen=True):
    """At the destination: progress of a FetchDirect session."""

    session: Name
    state: FetchState
    copied_bytes: int
    finished: Numbers = ()
    failure: Reason | None = None
    tasks: int = 0
    retries: int = 0


class SessionReport(msgspec.Struct, frozen=True):
    """At a source: a session that is not closed. `ended` is why it ended by itself, empty while open.

    `held_bytes` counts files of its checkpoint that the database no longer needs. `destination`, `engine` and
    `info` are for a new master (`ExchangeRequest.want_tablets`); `info` is None until the session is open.
    """

    session: Name
    lease_left_ms: int = 0
    held_bytes: int = 0
    ended: Text = ""
    destination: int = -1
    engine: Name = ""
    info: SessionInfo | None = None


class SilentPeer(msgspec.Struct, frozen=True):
    """At an owner: an in-sync member that has not acknowledged for `silent_ms`."""

    member: int
    silent_ms: int


LATENCY_BOUNDS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)
"""Upper bounds of the counts of durations; one count more is for those above."""


class Stats(msgspec.Struct, frozen=True):
    """Counters since the start of the process, and sizes; free space, sessions and logs are new, all others
    may be a second old.

    Free space is -1 when unknown. `copy_log_bytes` are those of logs that only copies need. `durations`
    counts answered requests by how long they took (LATENCY_BOUNDS_SECONDS); an older member has none.
    """

    reads: int = 0
    writes: int = 0
    forwarded: int = 0
    errors: int = 0
    owned: int = 0
    backups: int = 0
    entries: int = 0
    bytes: int = 0
    disk_free_bytes: int = -1
    sessions: int = 0
    copy_log_bytes: int = 0
    durations: Annotated[tuple[Counted, ...], msgspec.Meta(max_length=len(LATENCY_BOUNDS_SECONDS) + 1)] = ()


class KeyspaceSize(msgspec.Struct, frozen=True, array_like=True):
    """Entries of a declared keyspace in the partitions that a member owns; bytes are of keys and values."""

    keyspace: Name
    entries: int
    bytes: int


class ExchangeReply(msgspec.Struct, frozen=True):
    """A member's reply, with its report `number`.

    `code` is `OK`, or why nothing was adopted or run: `STALE_EPOCH`, `WRONG_MEMBER`, `WRONG_CLUSTER`,
    `BAD_REQUEST`, `UNKNOWN_FORMAT`, `STARTING`, `NO_SPACE`. `rows` and `members` are the member's whole table
    if `want_tablets` was set; with `row_digests` only the rows of the ranges in `differing`, whose digests
    are others here (None: nothing was compared), and no members. `accepted` are rows agreed to but not
    published; `unserved` are owned partitions that do not serve yet.
    `tablets` are those that changed after report `base`, which the master has (0: all of them), `dropped` the
    partitions whose tablets are gone since then. `sessions` is None when the member does not report them;
    `staged` names the sessions with a staging directory here. `pod_uid` is that of the process's pod,
    `boot_id` that of its node's running kernel; both are empty when unknown. `started_seconds` is a time, in
    Unix seconds of the node's clock, between the start of the process and its first answer. `stopping` asks
    the master to move everything off this member, which serves in full until it may stop. `formats` are
    those that its build speaks, `features` is the highest format that was in force on its volume.
    `catalog_version` is that of the catalog of keyspaces in use, which is on its volume, `cleared` that of
    the last ClearKeyspaces that is complete. `keyspaces` has every declared keyspace that is not empty here;
    None when nothing of it has changed since report `base`. `groups_version` is that of the groups of
    partitions in use, which are on its volume; `groups` are there with its table. `vacant` are keyspaces of
    that catalog which get partitions of their own, and have nothing in what the member owns by `stamp`.
    `in_doubt` counts transactions that only a user can end, in partitions that the member owns. `identity` is
    the digest of the certificate that the process uses (wire.identity), empty without one; `users` that of
    its file of users. `users_problem` is why it cannot read that file, while it needs it; empty otherwise.
    `member_tls` is the level that is in force and on its volume; None when the member does not know of it, or
    the file is damaged. `plain_links` counts the other members to which it has no session with TLS, where
    that level dials with it. While it is `adopting` this or an earlier request, which takes long, the reply
    only shows that it lives and what it has: it may lack the rows, and no command was run. `stamp` is that of
    its table, which may be ahead of what it was sent by rows that other members sent; `published_stamp` that
    of the versions that a master sent last, None of a build that does not count them.
    """

    code: Name
    detail: Text
    uuid: Name
    cluster: Name
    incarnation: int
    epoch: int
    stamp: int
    member_list_version: int
    results: Annotated[tuple[Result, ...], LISTED] = ()
    rows: Annotated[tuple[Row, ...], LISTED] = ()
    number: int = 0
    base: int = 0
    tablets: Annotated[tuple[TabletReport, ...], LISTED] = ()
    dropped: Numbers = ()
    accepted: Annotated[tuple[Row, ...], LISTED] = ()
    learners: Annotated[tuple[LearnerReport, ...], LISTED] = ()
    copies: Annotated[tuple[CopyReport, ...], LISTED] = ()
    fetches: Annotated[tuple[FetchReport, ...], LISTED] = ()
    silent: Annotated[tuple[SilentPeer, ...], LISTED] = ()
    unserved: Numbers = ()
    stats: Stats = Stats()
    sessions: Annotated[tuple[SessionReport, ...], LISTED] | None = None
    staged: Annotated[tuple[Name, ...], LISTED] = ()
    pod_uid: Name = ""
    boot_id: Name = ""
    started_seconds: float = 0.0
    stopping: bool = False
    formats: FormatRange = UNSTATED
    features: int = FIRST
    members: Annotated[tuple[MemberInfo, ...], LISTED] = ()
    catalog_version: int = 0
    cleared: int = 0
    keyspaces: Annotated[tuple[KeyspaceSize, ...], msgspec.Meta(max_length=KEYSPACES_MAX)] | None = None
    groups_version: int = 0
    groups: PartitionGroups = NO_GROUPS
    in_doubt: Annotated[int, msgspec.Meta(ge=0)] = 0
    vacant: Annotated[tuple[Name, ...], msgspec.Meta(max_length=KEYSPACES_MAX)] = ()
    identity: Annotated[str, msgspec.Meta(max_length=64)] = ""
    users: Annotated[str, msgspec.Meta(max_length=64)] = ""
    users_problem: Annotated[str, msgspec.Meta(max_length=USERS_PROBLEM_MAX)] = ""
    member_tls: InternalTls | None = None
    plain_links: Annotated[int, msgspec.Meta(ge=0)] = 0
    differing: Ranges | None = None
    adopting: bool = False
    published_stamp: int | None = None
