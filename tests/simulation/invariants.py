"""Rules that hold at every moment, whatever goes wrong. Each is looked at where it could be broken first.

`Rules` only looks: at what is stored, at the exchanges between master and members, at the members' files, and
a few times a second at the members themselves. What it finds ends the run.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec

from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, MEMBERS, REBALANCES, Kind
from stele.core.control import commands as m
from stele.core.control.operations.copy_session import CopySession, Stage
from stele.core.control.operations.move import MigrationOperation
from stele.core.table.groups import PartitionGroups
from stele.core.table.table import Partition
from stele.errors import Corrupt
from stele.master.manifests import keyspaces_name
from stele.master.merge_patch import merged
from stele.member.replication.links import Link
from stele.member.replication.replica import PROMISES_LOST
from stele.member.storage.volume import CONSENSUS, TABLETS
from stele.wire import peer
from stele.wire.configmap import decode_head, decode_rows
from stele.wire.keyspaces import decode_catalog
from stele.wire.storage.keys import log_key
from stele.wire.storage.volume import Consensus, Superblock, decode_file
from tests.simulation.builds import Features
from tests.simulation.copied import Copies
from tests.simulation.history import Violation
from tests.simulation.keyspaces import Catalogs
from tests.simulation.kubelet import Machine
from tests.simulation.master import MasterProcess
from tests.simulation.nodes import Removals
from tests.simulation.plans import Plans
from tests.simulation.power import Power
from tests.simulation.profile import CLUSTER
from tests.simulation.quarantines import Losses
from tests.simulation.reachability import Reachability
from tests.simulation.rebalances import UserPlans
from tests.simulation.recoveries import RecoveredRows
from tests.simulation.states import STATES_WITHOUT_MIGRATION, States
from tests.simulation.updates import Restarts
from tests.simulation.world import World

LOOK_SECONDS = 0.2
OBEYED_SECONDS = 5.0
"""A cluster state is in force this long after the user set it; the master may not have seen it before."""
LOWERED_SECONDS = 30.0
"""A wish for fewer copies may be acted on so long after the user took it back."""

Object = dict[str, Any]
T = TypeVar("T", Superblock, Consensus)


class Rules:
    """See the module. `harmed`: until when a member may be given up for what it holds, by its place."""

    def __init__(self, world: World, harmed: dict[str, float]) -> None:
        self.world, self._harmed = world, harmed
        self.reachability = Reachability(world)
        self.states = States(world, self._check, self._may_be_lost, self._is_whole)
        self.power = Power(world, self._is_away)
        self.plans = Plans(world, self._check)
        self.features = Features(world, self._check)
        self.copies = Copies(world, self._check)
        self.restarts = Restarts(world, self._check, self._is_away, self.reachability.led_since)
        self.user_plans = UserPlans(world, self._check)
        self.losses = Losses(world, self._check)
        self.removals = Removals(world, self._check, self._is_away)
        self.recovered = RecoveredRows(world, self._check)
        self.catalogs = Catalogs(world, self._check)
        self._groups: list[tuple[float, PartitionGroups]] = []
        self._rows: tuple[Partition, ...] = ()
        self._lost: tuple[Partition, ...] = ()
        self._named: dict[tuple[int, int], tuple[object, ...]] = {}
        self._epochs: dict[str, int] = {}
        self._known: dict[tuple[str, int, int], tuple[int, int]] = {}
        self._seen_epochs: dict[str, int] = {}
        self._owners: dict[tuple[int, int], str] = {}
        self._committed: dict[int, dict[int, int]] = {}
        self._looked: dict[tuple[str, int], tuple[int, int]] = {}
        self._desired_specs: list[tuple[float, int]] = []
        self._forbidden_since: float | None = None
        world.api.changed.append(self._changed)
        world.exchanged.append(self._exchanged)
        world.told.append(self._says)
        world.kubelet.saved = self._saved
        world.stack.enter_context(self._watch_appends())
        world.clock.call_later(LOOK_SECONDS, self._look)

    def _check(self, rule: str, holds: bool, text: str, *shown: object, partition: int = -1) -> None:
        """Count the look, and end the run when the rule does not hold."""
        self.world.trace.checked[rule] += 1
        if not holds:
            self.world.clock.fail(Violation(rule, text.format(*shown), partition=partition))

    def is_harmed(self, place: str) -> bool:
        return self.world.clock.now < self._harmed.get(place, 0.0)

    def _is_away(self, place: str) -> bool:
        """It may not have been there, or not with what it held, when another member lost something."""
        return self.is_harmed(place) or self.reachability.may_be_lost(place, self._epoch_of_table())

    def _epoch_of_table(self) -> int:
        return max(self._epochs.values(), default=0)

    # -- what is stored

    def _changed(self, kind: Kind, stored: Object, gone: bool) -> None:
        name = stored["metadata"]["name"]
        if kind is CONFIG_MAPS and not gone:
            if name == f"{CLUSTER}-table":
                head = decode_head(stored["data"])
                self._epoch(name, head.epoch)
                self._groups.append((self.world.clock.now, head.groups))
                self.states.head(head, self._rows)
                self.features.head(head)
            elif name == keyspaces_name(CLUSTER):
                self.catalogs.stored(decode_catalog(stored["data"]))
            else:
                shard = decode_rows(stored["data"], 0)
                self._epoch(name, shard.epoch)
                self._stored(shard.rows, shard.epoch)
                self.user_plans.rows()
        elif kind is CLUSTERS and not gone:
            self._desired(stored)
        elif kind is REBALANCES and not gone:
            self.user_plans.stored(stored)
        elif kind is MEMBERS and gone:
            self.removals.gone(stored)
        elif kind is MEMBERS:
            self.restarts.stored(stored, self._desired_copies())

    def forget_table(self) -> None:
        """Nothing is stored any more: what members know is all that another table can go by."""
        self._lost, self._rows, self._epochs = self._rows, (), {}
        self.recovered.note_volumes()
        self.states.forget_members()

    def _epoch(self, name: str, epoch: int) -> None:
        before = self._epochs.get(name, 0)
        self._check("stored epochs only grow", epoch >= before, "{}: {} after {}", name, epoch, before)
        self._epochs[name] = epoch

    def _stored(self, rows: tuple[Partition, ...], epoch: int) -> None:
        for number, row in enumerate(rows):
            before = self._rows[number] if number < len(self._rows) else Partition(0, ())
            if row == before:
                continue
            self.world.trace.note(
                "table", f"partition {number}: version {row.version} {row.replicas}", number
            )
            self.world.trace.cover(f"row of {len(before.members)} to {len(row.members)}")
            if before.version and row.members - before.members:
                self.world.trace.cover("moved to another member")
            elif before.version and row.members != before.members:
                self.world.trace.cover("shrunk")
            elif before.version:
                same = row.replicas == before.replicas
                self.world.trace.cover("stays as it was" if same else "moved inside the row")
            self.recovered.row(number, before, row)
            self.losses.row(number, before, row)
            grows = row.version > before.version
            self._check("versions only grow", grows, "{} was stored after {}", row, before, partition=number)
            self.states.row(number, before, row, epoch)
            self._one_row_per_version(number, row.version, row.replicas)
            self._never_fewer(number, before, row, epoch)
        self._rows = rows

    def _one_row_per_version(self, number: int, version: int, replicas: tuple[object, ...]) -> None:
        known = self._named.setdefault((number, version), tuple(replicas))
        same = known == tuple(replicas)
        self._check(
            "one row per version", same, "{} is {} and {}", version, known, replicas, partition=number
        )

    def _never_fewer(self, number: int, before: Partition, row: Partition, epoch: int) -> None:
        """Copies are never given up below what is desired, but for members that may be lost.

        Looked at are rows of which at least one member could not be given up.
        """
        needed = {each for each in before.members if not self._may_be_lost(each, number, epoch)}
        given_up = {each for each in needed - row.members if not self.restarts.may_leave(f"{CLUSTER}-{each}")}
        fewer = bool(given_up) and len(row.members) < min(len(before.members), self._copies_of(number))
        if needed:
            text = "{} follows {}, and nothing was wrong with {}"
            self._check("never fewer copies", not fewer, text, row, before, given_up, partition=number)

    def _may_be_lost(self, member: int, number: int, epoch: int) -> bool:
        place, whole = f"{CLUSTER}-{member}", self._is_whole(member, number)
        return not whole or self.is_harmed(place) or self.reachability.may_be_lost(place, epoch)

    def _is_whole(self, member: int, number: int) -> bool:
        machine = self.world.kubelet.machines.get(f"{CLUSTER}-{member}")
        return machine is not None and machine.disk.state_of(number) == "READY"

    def _desired_copies(self) -> int:
        """The fewest that were wished of late."""
        recent = [copies for at, copies in self._desired_specs if at > self.world.clock.now - LOWERED_SECONDS]
        return min([self.world.cluster["spec"]["replicas"], *recent])

    def _copies_of(self, number: int) -> int:
        """The same of one partition: a group has its own number."""
        now = self.world.clock.now
        groups = [each for at, each in self._groups if at > now - LOWERED_SECONDS] + [
            each for _, each in self._groups[-1:]
        ]
        found = [group.replicas for each in groups if (group := each.group_of(number)) is not None]
        return min(found) if found else self._desired_copies()

    def _desired(self, stored: Object) -> None:
        spec, now = stored["spec"], self.world.clock.now
        self._note_desired(now, spec["replicas"])
        state = spec.get("state", "Active")
        if state not in STATES_WITHOUT_MIGRATION:
            self._forbidden_since = None
        elif self._forbidden_since is None:
            self._forbidden_since = now
        status = stored.get("status") or {}
        if status.get("phase") == "Running":
            short = [n for n, row in enumerate(self._rows) if len(row.members) < self._least(status)]
            known = (status.get("observedGeneration"), status.get("epoch"))
            fresh = known == (stored["metadata"].get("generation"), self._epochs[f"{CLUSTER}-table"])
            text = "{} have too few copies"
            right = not (short and fresh)
            first = short[0] if short else -1
            self._check("Running only with all copies", right, text, short, partition=first)
            if fresh and self._has_asked(status["epoch"]):
                self._all_whole()

    def _has_asked(self, epoch: int) -> bool:
        """Whether the master of that epoch knows its members: before, it only adds its epoch to a status."""
        states = [each.state for each in self.world.masters if each.state is not None]
        return any(state.epoch == epoch and state.recovered for state in states)

    def _all_whole(self) -> None:
        """Whoever a row names has it, unless something befell it that the master need not have heard of."""
        rule, text = "Running only with whole copies", "{} of {} has a copy that is {!r}"
        for number, row in enumerate(self._rows):
            for member in sorted(row.members):
                place = f"{CLUSTER}-{member}"
                if self._is_away(place):
                    continue
                machine = self.world.kubelet.machines.get(place)
                found = "" if machine is None else machine.disk.state_of(number)
                self._check(rule, found == "READY", text, place, row, found, partition=number)

    def _says(self, master: MasterProcess, kind: Kind, patch: Object) -> None:
        """Ready is not told while the master that tells it has anything left to do."""
        state = master.state
        if kind is not CLUSTERS or state is None or not state.recovered:
            return
        status = merged(self.world.cluster.get("status") or {}, patch)
        conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
        shown = status.get("phase"), conditions.get("Ready")
        if shown[0] != "Running" and shown[1] != "True":
            return
        migrations = state.operations.migrations
        copying = [wave for wave in state.operations.sessions.values() if not _is_over(wave, migrations)]
        left = (
            migrations,
            state.operations.promotions,
            copying,
            state.table.staged,
            state.failover.lost,
            len(state.rebalance.queues),
        )
        text = "{}, Ready {}, while there is {}"
        self._check("Running and Ready only with nothing pending", not any(left), text, *shown, left)

    def _note_desired(self, now: float, copies: int) -> None:
        """`_desired_specs` has each number with the moment until which it was desired."""
        if self._desired_specs:
            self._desired_specs[-1] = (now, self._desired_specs[-1][1])
        if not self._desired_specs or self._desired_specs[-1][1] != copies:
            self._desired_specs.append((now, copies))

    def _least(self, status: Object) -> int:
        return int(min(self.world.cluster["spec"]["replicas"], status["members"]["ready"]))

    # -- exchanges

    def _exchanged(self, place: str, request: m.ExchangeRequest, reply: m.ExchangeReply) -> None:
        self.world.trace.cover(f"exchange {reply.code}")
        if reply.code != "OK" or not request.recipient:
            return
        self.features.answered(place, request, reply)
        highest = self._seen_epochs.get(reply.uuid, 0)
        obeys = request.epoch >= highest
        self._check("no lower epoch is obeyed", obeys, "{}: {} after {}", place, request.epoch, highest)
        self._seen_epochs[reply.uuid] = max(highest, request.epoch)
        for row in request.rows:
            self._published(row)
        run = () if reply.adopting else request.commands
        for command, result in zip(run, reply.results, strict=True):
            partition = getattr(command, "partition", -1)
            row = getattr(command, "row", None)
            partition = row.partition if row is not None else partition
            name = type(command).__name__
            self.world.trace.cover(f"{name} {result.code}")
            shown = msgspec.structs.replace(command, token="-") if hasattr(command, "token") else command
            self.world.trace.note(place, f"{shown} -> {result.code} {result.detail}", partition)
            if result.code == "OK":
                self._promised(place, command)

    def _published(self, row: m.Row) -> None:
        stored = self._rows[row.partition] if row.partition < len(self._rows) else Partition(0, ())
        known = row.version <= stored.version
        text = "{} was published, {} is stored"
        self._check("stored before published", known, text, row, stored, partition=row.partition)
        if row.version:
            self._one_row_per_version(row.partition, row.version, row.replicas)

    def _promised(self, place: str, command: m.Command) -> None:
        """What a member promised is on its disk before it says so."""
        machine = self.world.kubelet.machines.get(place)
        if machine is None or not machine.up:
            return
        if isinstance(command, m.StartTabletCopy) and self._forbidden_since is not None:
            since = self.world.clock.now - self._forbidden_since
            text = "{:.1f} s after it was forbidden"
            number = command.partition
            self._check("no copy while forbidden", since <= OBEYED_SECONDS, text, since, partition=number)
        if isinstance(command, m.StartTabletCopy):
            copy = machine.disk.consensus_of(command.partition).copy
            block = machine.disk.block_of(command.partition)
            kept = copy is None or (block is not None and block.highest >= copy.generation)
            text = "{}: {} has begun, {} is on disk"
            self._check("copies that began are on disk", kept, text, place, copy, block)
        if isinstance(command, m.Fence):
            meta = machine.disk.consensus_of(command.partition)
            kept, text = meta.promised >= command.term, "{}: term {} was promised, {} is on disk"
            self._check("promises are on disk", kept, text, place, command.term, meta.promised)
        elif isinstance(command, m.Accept):
            self._one_row_per_version(command.row.partition, command.row.version, command.row.replicas)
            meta = machine.disk.consensus_of(command.row.partition)
            known = machine.node.rows[command.row.partition].version  # type: ignore[union-attr]
            kept = meta.accepted == command.row or known >= command.row.version
            text = "{}: {} was accepted, {} is on disk"
            self.losses.agreed(command.row.partition, command.row.version)
            self._check("accepted rows are on disk", kept, text, place, command.row, meta.accepted)
            self._check_swap(machine, command)

    def _check_swap(self, machine: Machine, command: m.Accept) -> None:
        """A backup that takes over has all that the owner logged, which is frozen and logs nothing more."""
        number = command.row.partition
        row = self._rows[number] if number < len(self._rows) else Partition(0, ())
        inside = command.last is not None and row.members == set(command.row.replicas) - {None}
        owner = self.world.kubelet.machines.get(f"{CLUSTER}-{row.owner}")
        source = None if owner is None or owner.node is None else owner.node.replicas.get(number)
        if not inside or source is None or machine.node is None or source.meta.frozen is None:
            return
        if source.meta.frozen.id == command.id:
            log, last = machine.node.replicas[number].tablet.log, source.tablet.log.last
            text = "{} took over for {}, which has {}, and has {}"
            shown = machine.place, row.owner, last, log.last
            self._check("who takes over has everything", log.holds(last), text, *shown, partition=number)

    # -- operations on their way to other members

    def _watch_appends(self) -> AbstractContextManager[object]:
        real = Link.send_append

        def send_append(link: Link, items: list[peer.AppendItem], size: int) -> None:
            running = self.world.kubelet.reached()
            process = self.world.clock.current
            machine = next(each for each in running if each.process and each.process.loop is process)
            for item in items:
                self._sent(machine, item)
            real(link, items, size)

        return patch.object(Link, "send_append", send_append)

    def _sent(self, machine: Machine, item: peer.AppendItem) -> None:
        """An owner that is killed finds in its own log what it sent, or it would number others the same."""
        for index, record in enumerate(item.records, item.prev_index + 1):
            written = machine.disk.engine.get_log(log_key(item.partition, index)) == record
            shown = "{} sent operation {}", machine.place, index
            self._check("written before it is sent", written, *shown, partition=item.partition)

    # -- files of members

    def _saved(self, place: str, name: str, content: bytes, before: bytes | None) -> None:
        try:
            self._check_saved(place, name, content, before)
        except Exception as error:
            # It is raised in a thread of the product, which would take it for its own.
            self.world.clock.fail(error)
            raise

    def _check_saved(self, place: str, name: str, content: bytes, before: bytes | None) -> None:
        self.features.saved(place, name, content, before)
        folder, _, number = name.partition("/")
        if folder == TABLETS:
            self._saved_block(place, int(number), decode_file(Superblock, content, name), before)
        elif folder == CONSENSUS and before is not None:
            old, new = _read(Consensus, before), decode_file(Consensus, content, name)
            falls = old is not None and new.promised < old.promised < PROMISES_LOST.promised
            text = "{}: {} follows {}"
            self._check("promises never fall", not falls, text, place, new, old, partition=int(number))

    def _saved_block(self, place: str, number: int, block: Superblock, before: bytes | None) -> None:
        read = None if before is None else _read(Superblock, before)
        old = "" if read is None else read.state
        self.world.trace.note(place, f"superblock: {old} -> {block.state}", number)
        self.world.trace.cover(f"tablet {old or 'none'} -> {block.state}")
        self.losses.saved(place, number, block, read)
        last = 0 if read is None else read.highest
        grows, text = block.highest >= max(block.generation, last), "{}: {} follows {}"
        self._check("generations only grow", grows, text, place, block, read, partition=number)
        if old == "READY" and block.state == "DELETED":
            free, text = not self._names(number, place), "{} gives its tablet up, and the stored row names it"
            self._check("kept while the stored row names it", free, text, place, partition=number)

    def _names(self, number: int, place: str) -> bool:
        machine = self.world.kubelet.machines.get(place)
        if machine is None or not machine.uuid or not self._rows:
            return False
        index = int(place.rpartition("-")[2])
        entry = self.world.table().members.get(index)
        same = entry is not None and entry.uuid == machine.uuid
        return same and index in self._rows[number].members

    # -- members as they are

    def _look(self) -> None:
        self.world.clock.call_later(LOOK_SECONDS, self._look)
        self.power.look()
        self.losses.look()
        self.states.look()
        self.plans.look()
        self.restarts.look()
        for machine in self.world.kubelet.running():
            if machine.node is None or machine.process is None:
                continue
            for number, replica in machine.node.replicas.items():
                self._look_at(machine.place, machine.uuid, number, replica, machine.process.loop.number)
        master = self.world.master
        if master is not None and master.state is not None:
            for running in master.state.operations.migrations.values():
                self.world.trace.cover(f"{running.migration.type.name} {running.step.value}")
            for wave in master.state.operations.sessions.values():
                self.world.trace.cover(f"wave {wave.stage.value}")

    def _look_at(self, place: str, uuid: str, number: int, replica: Any, start: int) -> None:
        owner = replica.owner
        if owner is not None:
            self.world.trace.cover(f"owner {owner.phase.value}")
            if owner.learner is not None:
                self.world.trace.cover(f"learner {owner.learner.state.value}")
            if owner.appending:
                known = self._owners.setdefault((number, owner.term), uuid)
                text = "{} and {} in term {}"
                self._check(
                    "one owner per term", known == uuid, text, known, uuid, owner.term, partition=number
                )
        self._goes_forward(place, number, replica.tablet, start)
        if replica.ready:
            self._agree(place, number, replica.tablet.log, start)

    def _goes_forward(self, place: str, number: int, tablet: Any, start: int) -> None:
        """A process goes by no row that is not stored, and back to none, nor to an older term."""
        row, promised = tablet.row.version, tablet.promised
        stored = max((rows[number].version for rows in (self._rows, self._lost) if rows), default=0)
        before = self._known.get((place, number, start), (0, 0))
        self._known[place, number, start] = row, promised
        text, shown = "{}: row and promise {} after {}", (place, (row, promised), before)
        forward = (row >= before[0] and promised >= before[1]) or before[1] == PROMISES_LOST.promised
        self._check("members only go forward", forward, text, *shown, partition=number)
        text = "{} goes by row {}, {} is stored"
        self._check("no row before it is stored", row <= stored, text, place, row, stored, partition=number)

    def _agree(self, place: str, number: int, log: Any, start: int) -> None:
        """What is committed at one is never something else at another."""
        key, (seen_start, seen) = (place, number), self._looked.get((place, number), (0, 0))
        if seen_start != start or seen > log.committed:
            seen = 0
        self._looked[key] = (start, log.committed)
        terms = self._committed.setdefault(number, {})
        for index in range(max(seen + 1, log.first), log.committed + 1):
            term = log.term_at(index)
            if term is None:
                continue
            other = terms.setdefault(index, term)
            if other != term and (self.power.explains(number, index) or self.losses.explains(number, index)):
                terms[index] = other = term
            text = "{} committed operation {} in term {}, another in term {}"
            shown = (place, index, term, other)
            self._check("what is committed stays", other == term, text, *shown, partition=number)


def _read(kind: type[T], content: bytes) -> T | None:
    """What a file said before; None when a bit of it was flipped."""
    try:
        return decode_file(kind, content, "before")
    except Corrupt:
        return None


def _is_over(session: CopySession, migrations: Mapping[int, MigrationOperation]) -> bool:
    """Whether only answers of members are missing: that they took the copies in, or closed the session.

    A member that was just lost does not answer.
    """
    under_way = {each.id for each in migrations.values()}.intersection(session.partitions.values())
    return session.stage in (Stage.CLOSE, Stage.CLOSED) or (session.stage is Stage.INGEST and not under_way)
