"""Members in memory that answer exchanges (docs/reference/protocol.md), with a log of acknowledged writes.

Data is a list of write ids per tablet, so that a lost write is a missing id. Nothing here knows the master.
"""

from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from stele.core.control import commands as m
from stele.core.control.commands import ExchangeReply, ExchangeRequest, OpId, Result, Row
from stele.core.delta import DeltaLog
from stele.core.formats import FIRST, GROUPS, KEYSPACES, SPOKEN
from stele.core.kv.keyspaces import NO_CATALOG
from stele.core.security.level import InternalTls
from stele.core.table.digests import differing_ranges, range_of, row_digests
from stele.core.table.groups import NO_GROUPS
from stele.core.table.table import stamp_of
from stele.errors import Unavailable
from stele.wire import control as wire

FENCES_OF_A_LEASE = 3
"""How often a fence finds the lease still running when the old owner is reachable."""


@dataclass
class Tablet:
    state: str = "READY"
    generation: int = 1
    data: list[int] = field(default_factory=list)
    promised: int = 0
    term: int = 0

    @property
    def last(self) -> OpId:
        return OpId(self.term, len(self.data))


@dataclass
class Learner:
    id: str
    destination: int
    state: str = "PROBING"
    handed_over: bool = False
    result: tuple[int | None, ...] = ()


@dataclass
class Copy:
    id: str
    base: int
    state: str = "STARTED"
    was_ready: bool = False
    result: tuple[int | None, ...] = ()
    refused: bool = False


@dataclass
class Events:
    """What a member did with each migration that it took part in: as often as it began, it ended."""

    begun: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)


class FakeMember:
    """One member; `alive` is its process, `uuid` and what is below `disk` survive a restart."""

    def __init__(self, net: "FakeNet", address: str, uuid: str, cluster: str) -> None:
        self.net, self.address, self.uuid, self.cluster = net, address, uuid, cluster
        self.alive = True
        self.incarnation = 1
        self.epoch = 0
        self.formats, self.features = SPOKEN, FIRST
        self.compares = True
        """Unless its build knows no digests of rows."""
        self.catalog, self.groups = NO_CATALOG, NO_GROUPS
        self.occupied: set[str] = set()
        """Keyspaces with entries in partitions that they share with others."""
        self.index = -1
        self.members: tuple[m.MemberInfo, ...] = ()
        self.member_list_version = -1
        self.rows: dict[int, Row] = {}
        self.partitions = 0
        self.accepted: dict[int, Row] = {}
        self.tablets: dict[int, Tablet] = {}
        self.learners: dict[int, Learner] = {}
        self.copies: dict[int, Copy] = {}
        self.sessions: dict[str, dict[int, list[int]]] = {}
        self.destinations: dict[str, int] = {}
        self.opened: dict[str, tuple[int, ...]] = {}
        """Partitions of each session that was ever opened here: what was copied."""
        self.fetches: dict[str, m.FetchReport] = {}
        self.staged: dict[str, dict[int, list[int]]] = {}
        self.renewals: list[m.OpenSession] = []
        self.free_bytes = -1
        self.written_bytes_per_second = 0
        """To each tablet."""
        self.log_reaches = True
        """Whether what is written during a copy is still in the log when it is over."""
        self.frozen: dict[int, str] = {}
        self.news = DeltaLog[int, m.TabletReport](1 << 32)
        self.events = Events()
        self.state = "Active"
        self.locked = ""
        self.pod_uid, self.started_seconds = "", 0.0
        self.users_problem = ""
        self.stopping = self.may_stop = False
        """A planned stop is announced; the master has answered that nothing is left to move."""
        self.tls: InternalTls = InternalTls.OFF
        self.tls_damaged = self.stuck_plain = False
        """The level on its volume is damaged, so it is unknown until a master says one; one of its links gets
        no TLS."""
        self.dies_at = ""
        """Name of a command: the process dies when it gets it; with a `!` in front, after it did it."""

    def runs_in(self, pod_uid: str, started_seconds: float) -> None:
        """Which process answers from now on."""
        self.pod_uid, self.started_seconds = pod_uid, started_seconds

    def announce(self) -> bool:
        """Report a planned stop from now on; whether it has to wait for the master."""
        if not self.stopping:
            self.stopping, self.may_stop = True, False
        return not self.may_stop

    def restart(self) -> None:
        """The process comes back on the same volume; half received copies are gone."""
        self.alive = True
        self.incarnation += 1
        self.news = DeltaLog(self.incarnation << 32)
        for number, learner in list(self.learners.items()):
            if learner.state != "IN_SYNC":
                self._forget_learner(number, committed=False)
        for number, copy in list(self.copies.items()):
            if copy.state not in ("INGESTED", "ACCEPTED") and not copy.was_ready:
                self.tablets[number].state = "DELETED"
            if copy.state != "ACCEPTED":
                self._forget_copy(number, committed=False)
        self.sessions, self.fetches, self.staged = {}, {}, {}
        for operation in (*self.learners.values(), *self.copies.values()):
            operation.result = ()
        self.locked = ""
        self.stopping = self.may_stop = False

    def row(self, number: int) -> Row:
        return self.rows.get(number, Row(number, 0, ()))

    # -- data plane

    def owns(self, number: int) -> bool:
        row = self.row(number)
        return bool(row.replicas) and row.replicas[0] == self.index

    def write(self, number: int, value: int) -> bool:
        """Whether the write was acknowledged: every in-sync replica appended it."""
        if not self.alive or self.state == "Passive" or not self.owns(number) or number in self.frozen:
            return False
        row, mine = self.row(number), self.tablets.get(number)
        if mine is None or mine.promised > row.version:
            return False
        waited = {each for each in row.replicas if each is not None} - {self.index}
        learner = self.learners.get(number)
        if learner is not None and learner.state == "IN_SYNC":
            waited.add(learner.destination)
        others = [self.net.by_index(self, each) for each in waited]
        if any(each is None or not each.takes(number, row.version) for each in others):
            return False
        for each in (self, *others):
            assert each is not None
            each.tablets[number].data = sorted({*each.tablets[number].data, *mine.data, value})
            each.tablets[number].term = row.version
        return True

    def takes(self, number: int, version: int) -> bool:
        tablet = self.tablets.get(number)
        return (
            self.alive
            and tablet is not None
            and tablet.state != "DELETED"
            and tablet.promised <= version
            and self.row(number).version <= version
        )

    # -- exchanges

    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        code = self._check(request)
        if code:
            return self._reply(code)
        if not request.recipient:
            return self._report(request)
        if request.groups is None and request.groups_version > self.groups.version:
            return self._report(request)
        self.locked = self.locked if request.epoch == self.epoch else ""
        self.epoch, self.index = request.epoch, request.self_index
        if request.groups is not None:
            assert request.groups.version >= self.groups.version, "they are the newest that any member has"
            assert request.format >= GROUPS
            self.groups = request.groups
        assert all(row.partition < request.partitions for row in request.rows)
        assert not request.rows or self.groups.end(request.partitions) == request.partitions
        self.partitions = max(self.partitions, request.partitions)
        self.state, self.features = request.state, max(self.features, request.format)
        self.may_stop = self.stopping and request.may_stop
        if request.catalog is not None:
            # The same one comes again after an answer that was lost.
            assert request.catalog.version >= self.catalog.version, "it is older"
            assert self.features >= KEYSPACES
            self.catalog = request.catalog
        if request.members and request.member_list_version > self.member_list_version:
            self.members, self.member_list_version = request.members, request.member_list_version
        if request.settings is not None and request.settings.member_tls is not None:
            self.tls, self.tls_damaged = request.settings.member_tls, False
        for row in request.rows:
            self._adopt(row)
        results = tuple(self._run(command) for command in request.commands)
        if not self.alive:
            raise Unavailable(f"{self.address} died")
        self._probe()
        return self._report(request, results)

    def _report(self, request: ExchangeRequest, results: tuple[Result, ...] = ()) -> ExchangeReply:
        """The reply, in a take-over with the rows that differ from the master's; older builds send all."""
        reply = self._reply("OK", results, want=request.want_tablets, known=request.known)
        digests = request.row_digests if request.want_tablets and self.compares else None
        if digests is None:
            return reply
        differing = differing_ranges(row_digests([self.row(p) for p in range(self.partitions)]), digests)
        rows = tuple(row for row in reply.rows if range_of(row.partition) in differing)
        return replace(reply, rows=rows, differing=differing, members=())

    def _check(self, request: ExchangeRequest) -> str:
        if not self.formats.speaks(request.format):
            return "UNKNOWN_FORMAT"
        if request.cluster != self.cluster:
            return "WRONG_CLUSTER"
        if request.recipient and request.recipient != self.uuid:
            return "WRONG_MEMBER"
        return "STALE_EPOCH" if request.epoch < self.epoch else ""

    def _adopt(self, row: Row) -> None:
        before = self.row(row.partition)
        if row.version < before.version:
            return
        assert row.version > before.version or row.replicas == before.replicas, "two rows with one version"
        self.rows[row.partition] = row
        accepted = self.accepted.get(row.partition)
        if accepted is not None and accepted.version <= row.version:
            del self.accepted[row.partition]
        if row.version > before.version:
            learner = self.learners.get(row.partition)
            # A destination that is in the row already is that of a SWAP, which makes it the owner.
            named = row.replicas[:1] if learner and learner.destination in before.replicas else row.replicas
            self._forget_learner(
                row.partition, committed=learner is not None and learner.destination in named
            )
            self.frozen.pop(row.partition, None)
            if self.index in row.replicas:
                self._forget_copy(row.partition, committed=True)
        if self.index in row.replicas and not before.version:
            self.tablets.setdefault(row.partition, Tablet())
        if self.owns(row.partition):
            self._establish(row)

    def _forget_learner(self, number: int, *, committed: bool) -> None:
        learner = self.learners.pop(number, None)
        if learner is not None:
            self._note_end(learner.id, committed)

    def _forget_copy(self, number: int, *, committed: bool) -> None:
        copy = self.copies.pop(number, None)
        if copy is not None:
            self._note_end(copy.id, committed)

    def _note_end(self, id: str, committed: bool) -> None:
        (self.events.committed if committed else self.events.rolled_back).append(id)

    def _establish(self, row: Row) -> None:
        """Take over what the others of the row have; here all writes are held by all of them."""
        mine = self.tablets[row.partition]
        assert mine.state == "READY", f"{self.address} owns {row} without its data"

    def _run(self, command: m.Command) -> Result:
        name = type(command).__name__
        if not self.alive or self.dies_at == name:
            self.alive = False
            return Result("DEAD")
        result: Result = getattr(self, "_" + name)(command)
        if self.dies_at == f"!{name}":
            self.alive = False
        return result

    def _StartTabletCopy(self, c: m.StartTabletCopy) -> Result:  # noqa: N802
        copy, row = self.copies.get(c.partition), self.row(c.partition)
        if self.locked:
            return Result("STATE_LOCKED")
        if copy is not None and copy.id == c.id:
            return Result(generation=self.tablets[c.partition].generation)
        if row.version != c.base:
            return Result("STALE_VERSION", f"{row}")
        if self.index in row.replicas:
            return Result("ILLEGAL_STATE", f"{row} names this member")
        if copy is not None:
            return Result("ALREADY_IN_PROGRESS", copy.id)
        if c.partition in self.tablets and self.tablets[c.partition].promised > c.base:
            return Result("STALE_TERM")
        tablet = self.tablets.setdefault(c.partition, Tablet("DELETED", 0))
        ready = tablet.state == "READY"
        if not ready:
            tablet.state, tablet.data, tablet.generation = "COPYING", [], tablet.generation + 1
        self.copies[c.partition] = Copy(c.id, c.base, was_ready=ready, result=c.result)
        self.events.begun.append(c.id)
        return Result(generation=tablet.generation)

    def _AddLearner(self, c: m.AddLearner) -> Result:  # noqa: N802
        learner = self.learners.get(c.partition)
        if self.locked:
            return Result("STATE_LOCKED")
        if not self.owns(c.partition):
            return Result("NOT_OWNER")
        if all(each.index != c.destination for each in self.members):
            return Result("UNKNOWN_MEMBER")
        if self.row(c.partition).version != c.base:
            return Result("STALE_VERSION")
        if learner is not None:
            return Result() if learner.id == c.id else Result("MIGRATION_ACTIVE")
        inside = c.destination in self.row(c.partition).replicas
        state = "IN_SYNC" if inside else "PROBING"
        self.learners[c.partition] = Learner(c.id, c.destination, state, result=c.result)
        self.events.begun.append(c.id)
        return Result()

    def _OpenSession(self, c: m.OpenSession) -> Result:  # noqa: N802
        if c.renew:
            self.renewals.append(c)
            return Result() if c.session in self.sessions else Result("SESSION_LOST", "not open here")
        snapshot = self.sessions.setdefault(c.session, {p: list(self.tablets[p].data) for p in c.partitions})
        self.opened[c.session] = tuple(snapshot)
        self.destinations[c.session] = c.destination
        return Result(session=self._info(c.session))

    def _info(self, session: str) -> m.SessionInfo:
        tablets = tuple(
            m.SessionTablet(p, self.tablets[p].generation, OpId(1, len(data)), 100 * len(data))
            for p, data in self.sessions[session].items()
        )
        return m.SessionInfo(session, "token", tablets)

    def _CloseSession(self, c: m.CloseSession) -> Result:  # noqa: N802
        for each in (self.sessions, self.fetches, self.staged):
            each.pop(c.session, None)
        return Result()

    def _FetchDirect(self, c: m.FetchDirect) -> Result:  # noqa: N802
        self.stage(c.session, c.source, [item.partition for item in c.items])
        bytes_ = sum(item.bytes for item in c.items)
        self.fetches[c.session] = m.FetchReport(c.session, "DONE", bytes_)
        return Result()

    def stage(self, session: str, source: int, partitions: list[int]) -> bool:
        """What a copy engine does: the snapshot's data comes into staging."""
        other = self.net.by_index(self, source)
        if other is None or session not in other.sessions:
            return False
        self.staged[session] = {p: list(other.sessions[session][p]) for p in partitions}
        return True

    def _Ingest(self, c: m.Ingest) -> Result:  # noqa: N802
        staged = self.staged.get(c.session)
        for number in c.partitions:
            copy = self.copies.get(number)
            if copy is None and self.index not in self.row(number).replicas:
                return Result("ILLEGAL_STATE", "no copy was started")
            if copy is None or copy.state == "INGESTED":
                continue
            if staged is None:
                return Result("NOT_FOUND", "nothing is staged")
            tablet = self.tablets[number]
            tablet.data, tablet.state = sorted({*tablet.data, *staged[number]}), "READY"
            copy.state = "INGESTED"
        return Result()

    def _HandOver(self, c: m.HandOver) -> Result:  # noqa: N802
        if not self.owns(c.partition):
            return Result("NOT_OWNER")
        if c.swaps and (refusal := self._begin_swap(c)):
            return Result(refusal)
        learner = self.learners.get(c.partition)
        if learner is None or learner.id != c.id or learner.state != "IN_SYNC":
            return Result("ILLEGAL_STATE", "no such learner in sync")
        self.frozen[c.partition] = c.id
        return Result(last=self.tablets[c.partition].last)

    def _begin_swap(self, c: m.HandOver) -> str:
        learner, row = self.learners.get(c.partition), self.row(c.partition)
        if learner is not None:
            return "" if learner.id == c.id else "MIGRATION_ACTIVE"
        if self.locked:
            return "STATE_LOCKED"
        if row.version != c.base:
            return "STALE_VERSION"
        if c.backup not in row.replicas[1:]:
            return "ILLEGAL_STATE"
        other = self.net.by_index(self, c.backup)
        if other is None or not other.takes(c.partition, row.version):
            return "BACKUP_BEHIND"
        self.learners[c.partition] = Learner(c.id, c.backup, "IN_SYNC")
        self.events.begun.append(c.id)
        return ""

    def _Accept(self, c: m.Accept) -> Result:  # noqa: N802
        number = c.row.partition
        tablet = self.tablets.get(number)
        if tablet is None or tablet.state != "READY":
            return Result("ILLEGAL_STATE", "no data")
        if c.row.version <= self.row(number).version:
            same = c.row == self.row(number)
            return Result() if same else Result("STALE_VERSION")
        self._check_hand_over(c)
        before = self.accepted.get(number)
        assert before is None or before.version != c.row.version or before == c.row, "two accepted rows"
        self.accepted[number] = c.row
        if number in self.copies:
            self.copies[number].state = "ACCEPTED"
        self.net.note_row(c.row)
        return Result()

    def _check_hand_over(self, c: m.Accept) -> None:
        """Nobody is asked to become the owner by a migration while the present one goes on."""
        owner = self.net.by_index(self, self.row(c.row.partition).replicas[0] or 0)
        if c.id.startswith("m") and c.row.replicas[0] == self.index and owner is not None and owner.alive:
            assert owner is self or owner.frozen.get(c.row.partition) == c.id, "accepted without hand-over"

    def _Abort(self, c: m.Abort) -> Result:  # noqa: N802
        learner, copy = self.learners.get(c.partition), self.copies.get(c.partition)
        accepted = self.accepted.get(c.partition)
        if copy is not None and copy.id == c.id and accepted is not None:
            return Result("ILLEGAL_STATE", "only a published row of a higher version ends it")
        if learner is not None and learner.id == c.id:
            self._forget_learner(c.partition, committed=False)
        if self.frozen.get(c.partition) == c.id:
            del self.frozen[c.partition]
        if copy is not None and copy.id == c.id:
            self._forget_copy(c.partition, committed=False)
            if not copy.was_ready and self.index not in self.row(c.partition).replicas:
                self.tablets[c.partition].state, self.tablets[c.partition].data = "DELETED", []
        return Result()

    def _Fence(self, c: m.Fence) -> Result:  # noqa: N802
        tablet = self.tablets.setdefault(c.partition, Tablet("DELETED", 0))
        if c.term < tablet.promised:
            return Result("STALE_TERM")
        tablet.promised = c.term
        if not c.owner_dead and self.net.lease_runs(self, self.row(c.partition), c.term):
            return Result("WAIT", wait_ms=200)
        return Result(last=tablet.last)

    def _CreateTablet(self, c: m.CreateTablet) -> Result:  # noqa: N802
        tablet = self.tablets.get(c.partition)
        if self.row(c.partition).version != c.base:
            return Result("STALE_VERSION")
        if tablet is not None and tablet.state == "READY":
            return Result("ILLEGAL_STATE") if tablet.data else Result()
        self.tablets[c.partition] = Tablet("READY", 1 if tablet is None else tablet.generation + 1)
        return Result()

    def _LockState(self, c: m.LockState) -> Result:  # noqa: N802
        stamp = stamp_of([self.row(p).version for p in range(self.partitions)])
        if (c.stamp, c.member_list_version) != (stamp, self.member_list_version):
            return Result("STALE_VERSION", f"stamp {stamp}, member list {self.member_list_version}")
        if self.copies or self.learners:
            return Result("MIGRATION_ACTIVE", "a migration is not over here")
        self.locked = c.id
        return Result()

    def _UnlockState(self, c: m.UnlockState) -> Result:  # noqa: N802
        self.locked = "" if c.id == self.locked else self.locked
        return Result()

    def _DeleteTablet(self, c: m.DeleteTablet) -> Result:  # noqa: N802
        row = self.row(c.partition)
        if row.version < c.version:
            return Result("STALE_VERSION")
        if self.index in row.replicas:
            return Result("ILLEGAL_STATE", f"{row} names this member")
        if c.partition in self.copies:
            return Result("MIGRATION_ACTIVE")
        tablet = self.tablets.get(c.partition)
        if tablet is not None:
            tablet.state, tablet.data = "DELETED", []
        return Result()

    def _probe(self) -> None:
        """The owner's streams move on: a learner that has everything is waited for from then on."""
        for number, learner in list(self.learners.items()):
            if not self.owns(number):
                self._forget_learner(number, committed=False)
                continue
            other = self.net.by_index(self, learner.destination)
            if other is None or not other.alive:
                continue
            theirs, mine = other.tablets.get(number), self.tablets[number]
            if theirs is None or theirs.state == "DELETED":
                continue
            if theirs.state == "COPYING" or not self.log_reaches:
                learner.state = "NEEDS_COPY"
            elif learner.state in ("PROBING", "NEEDS_COPY"):
                learner.state = "STREAMING"
            elif learner.state == "STREAMING":
                theirs.data = sorted({*theirs.data, *mine.data})
                learner.state = "IN_SYNC"

    def _report_of(self, partition: int, tablet: "Tablet") -> m.TabletReport:
        size, written = 100 * len(tablet.data), self.written_bytes_per_second
        return m.TabletReport(
            partition,
            tablet.state,  # type: ignore[arg-type]
            tablet.generation,
            tablet.last,
            tablet.last,
            tablet.promised,
            size,
            written,
        )

    def _reply(
        self, code: str, results: tuple[Result, ...] = (), *, want: bool = False, known: int = 0
    ) -> ExchangeReply:
        versions = [self.row(p).version for p in range(self.partitions)]
        self.news.update(
            {p: self._report_of(p, t) for p, t in self.tablets.items() if t.generation},
            [p for p in range(self.partitions) if p not in self.tablets or not self.tablets[p].generation],
        )
        base, tablets, dropped = self.news.since(known)
        return ExchangeReply(
            code,
            "",
            self.uuid,
            self.cluster,
            self.incarnation,
            self.epoch,
            stamp_of(versions),
            self.member_list_version,
            results,
            rows=tuple(self.rows.values()) if want else (),
            groups=self.groups if want else NO_GROUPS,
            groups_version=self.groups.version,
            number=self.news.number,
            base=base,
            tablets=tuple(tablets),
            dropped=tuple(dropped),
            accepted=tuple(self.accepted.values()),
            learners=tuple(
                m.LearnerReport(each.id, p, each.destination, each.state, 0, result=each.result)  # type: ignore[arg-type]
                for p, each in self.learners.items()
            ),
            copies=tuple(
                m.CopyReport(
                    each.id,
                    p,
                    each.base,
                    each.state,  # type: ignore[arg-type]
                    self.tablets[p].generation,
                    result=each.result,
                    refused=each.refused,
                )
                for p, each in self.copies.items()
            ),
            fetches=tuple(self.fetches.values()),
            pod_uid=self.pod_uid,
            started_seconds=self.started_seconds,
            stats=m.Stats(disk_free_bytes=self.free_bytes),
            sessions=tuple(
                m.SessionReport(
                    each, 60_000, destination=self.destinations[each], info=self._info(each) if want else None
                )
                for each in self.sessions
            ),
            staged=tuple(self.staged),
            stopping=self.stopping,
            member_tls=None if self.tls_damaged else self.tls,
            plain_links=int(self.stuck_plain and self.tls.dials_tls),
            formats=self.formats,
            features=self.features,
            catalog_version=self.catalog.version,
            members=self.members if want else (),
            vacant=self._vacant(),
            users_problem=self.users_problem,
        )

    def _vacant(self) -> tuple[str, ...]:
        placed = {name for name, each in self.catalog.keyspaces.items() if each.own_partitions}
        return tuple(placed - {each.keyspace for each in self.groups.groups} - self.occupied)


class FakeNet:
    """All members of one cluster by address; implements the port `Members`."""

    def __init__(self) -> None:
        self.members: dict[str, FakeMember] = {}
        self.versions: dict[tuple[int, int], tuple[int | None, ...]] = {}
        self.exchanges = 0
        self.cut: set[str] = set()
        """Addresses of members that run and reach nobody."""
        self._waited: Counter[tuple[str, int, int]] = Counter()

    def by_index(self, asking: FakeMember, index: int) -> FakeMember | None:
        info = next((each for each in asking.members if each.index == index), None)
        found = None if info is None else self.members.get(info.address)
        if found is None or info is None or found.uuid != info.uuid:
            return None
        return found if found is asking or not self.cut & {found.address, asking.address} else None

    def lease_runs(self, asking: FakeMember, row: Row, term: int) -> bool:
        """The lease that a fenced replica gave is not given again: it ends after some fences."""
        owner = (
            self.by_index(asking, row.replicas[0]) if row.replicas and row.replicas[0] is not None else None
        )
        if owner is None or not owner.alive or owner is asking:
            return False
        self._waited[asking.uuid, row.partition, term] += 1
        return self._waited[asking.uuid, row.partition, term] <= FENCES_OF_A_LEASE

    def note_row(self, row: Row) -> None:
        """Never two different rows with one version."""
        known = self.versions.setdefault((row.partition, row.version), row.replicas)
        assert known == row.replicas, (
            f"partition {row.partition} version {row.version}: {known}, {row.replicas}"
        )

    async def exchange(
        self, address: str, request: ExchangeRequest, deadline_seconds: float
    ) -> ExchangeReply:
        self.exchanges += 1
        member = self.members.get(address)
        if member is None or not member.alive or address in self.cut:
            raise Unavailable(f"{address} is not there")
        for row in request.rows:
            self.note_row(row)
        return member.exchange(wire.decode_request(wire.encode(request)))
