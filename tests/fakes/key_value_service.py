"""The fake of `KeyValueService` for tests of the RESP server, with ways to make it slow or fail.

Another member owns the partitions `elsewhere`.
"""

import asyncio
import time
from itertools import takewhile
from types import SimpleNamespace

from stele.core.kv.announce import POD_ADDRESSES
from stele.core.kv.cluster_map import cluster_map, owner_node
from stele.core.kv.commands import READS, REPLY_BYTES_MAX, Delete, Put, evaluate
from stele.core.kv.cover import Listing
from stele.core.kv.keyspaces import DEFAULTS
from stele.core.kv.local_commands import fitting
from stele.core.kv.local_keyspaces import LocalKeyspaces, Moment
from stele.core.kv.transaction import EXEC, FINGERPRINT, fingerprint
from stele.core.table.table import Member, Partition
from stele.member import limits
from stele.member.serving.dedup import Attempt
from stele.member.serving.transactions import run_transaction
from stele.member.tracking.near_caches import NearCaches
from stele.ports.transactions import NoTransactions
from stele.wire import peer
from stele.wire.storage.keys import user_tail


class FakeLocalCaches:
    """The entries of a member that is alone; `told` has what it would tell others."""

    def __init__(self):
        self.keyspaces = set()
        self.covered = True
        self.told = []
        self.failures = []
        self._state = LocalKeyspaces(Listing(0.0))

    def _cache(self, keyspace):
        self._state.use(dict.fromkeys(self.keyspaces, 1 << 20))
        self._state.cover.list_changed(1, () if self.covered else (1,))
        return self._state.caches[keyspace]

    def _run(self, keyspace, commands, misses):
        moment = Moment(0.0, int(time.time() * 1000))
        return self._state.run(self._cache(keyspace), commands, misses, moment)

    def read(self, keyspace, commands, misses):
        reads = list(takewhile(lambda args: args[0].upper() in READS, commands))
        return self._run(keyspace, reads, misses).replies

    async def execute(self, keyspace, commands, misses, room=REPLY_BYTES_MAX, *, writer=0, whole=False):
        if self.failures:
            raise self.failures.pop(0)
        fits = fitting(commands, self._cache(keyspace), 0, room)
        if whole and fits < len(commands):
            return []
        ran = self._run(keyspace, commands[:fits], misses)
        if ran.told:
            self.told.append((keyspace, ran.told))
        return ran.replies

    async def clear(self, keyspace):
        self._cache(keyspace).clear()
        self.told.append((keyspace, None))

    def count(self, keyspace):
        return len(self._cache(keyspace))


class _Either:
    """The keyspaces that are available or local, as they are at the moment."""

    def __init__(self, service):
        self._service = service

    def __contains__(self, keyspace):
        return keyspace in self._service.available or keyspace in self._service.local.keyspaces


class FakeKeyValueService:
    """Every partition of every keyspace as a dict. Requests wait for the event `gate`, if there is one when
    they begin.

    `own_groups` has the partitions of the keyspaces that have some of their own.
    """

    def __init__(self, partitions=271):
        self.partitions = partitions
        self.own_groups = {}
        self.data = {}
        self.calls = []
        self.read_at_once = []
        self.running = 0
        self.running_max = 0
        self.delay_seconds = 0.0
        self.gate = None
        self.failures = []
        self.tasks = set()
        self.elsewhere = set()
        self.available = set()
        self.only = set()
        self.asynchronous = set()
        self.local = FakeLocalCaches()
        self.aside = _Either(self)
        self.announce = POD_ADDRESSES
        self._maps = None, {}
        self.backed_up = set()
        self.fresh = True
        table = SimpleNamespace(me=0, rows=[Partition(1, (0,))] * partitions)
        self.near_caches = NearCaches(table, {}, time.monotonic, lambda prefixes: None)
        self.keyspaces = {}
        self.transactions = NoTransactions()

    def group(self, keyspace):
        return self.own_groups.get(keyspace, range(self.partitions))

    def groups(self):
        return [range(self.partitions), *self.own_groups.values()] if self.partitions else []

    def cluster_map(self, group):
        table = frozenset(self.elsewhere), frozenset(self.backed_up), tuple(self.groups()), self.announce
        if self._maps[0] != table:
            self._maps = table, {}
        if group not in self._maps[1]:
            rows = [self._row(partition) for partition in group]
            epoch = sum(self._row(partition).version for each in self.groups() for partition in each)
            made = cluster_map(rows, self._members(), 0, epoch=epoch, announce=self.announce)
            self._maps[1][group] = made
        return self._maps[1][group]

    def _row(self, partition):
        if partition not in self.elsewhere:
            return Partition(1, (0,))
        return Partition(2, (1, 0) if partition in self.backed_up else (1,))

    def _members(self):
        return {n: Member(n, f"m{n}", f"uuid-{n}", f"10.0.0.{n + 1}") for n in (0, 1)}

    def home(self, partition):
        return owner_node(self._members()[1], self.announce) if partition in self.elsewhere else None

    def settings_of(self, keyspace):
        return self.keyspaces.get(keyspace, DEFAULTS)

    def backups_min(self, group):
        return 0

    def backs_up(self, partition):
        return partition in self.backed_up

    def available_since(self, keyspace):
        return 0.0 if keyspace in self.available else None

    def read_here(self, seen, keyspace, partitions, commands):
        """What this member owns or backs up, while `fresh`."""
        replies = []
        for partition, command in zip(partitions, commands, strict=True):
            is_here = partition not in self.elsewhere or partition in self.backed_up
            if not (seen.readonly or keyspace in self.available) or not self.fresh or not is_here:
                break
            if command[0].upper() not in READS:
                break
            self.read_at_once.append((partition, command[1]))
            replies += self._all(partition, keyspace, [command], REPLY_BYTES_MAX)
        return replies

    def read_now(self, keyspace, partitions, keys):
        """Never at once: so every read goes the way that may wait."""

    def start(self, partition, keyspace, commands, outcome, room=REPLY_BYTES_MAX, *, track=None, saw=None):
        def ended(task):
            error = task.exception()
            outcome.set_result(task.result()) if error is None else outcome.set_exception(error)

        task = asyncio.ensure_future(self.execute(partition, keyspace, commands, room, track=track))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(ended)

    async def execute(
        self, partition, keyspace, commands, room=REPLY_BYTES_MAX, seen=None, *, track=None, written=None
    ):
        self.calls.append((partition, keyspace, [list(command) for command in commands]))
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if self.gate is not None:
                await self.gate.wait()
            if self.failures:
                raise self.failures.pop(0)
            before = dict(self.data.get((partition, keyspace), {}))
            replies = self._all(partition, keyspace, commands, room)
            self._tell(partition, keyspace, before, 0 if track is None else track.writer)
            return replies
        finally:
            self.running -= 1

    def _tell(self, partition, keyspace, before, writer):
        """Say as an owner does which keys have changed."""
        after = self.data.get((partition, keyspace), {})
        changed = [key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)]
        if changed:
            names = [user_tail(keyspace, key) for key in sorted(changed)]
            self.near_caches.invalidate(peer.Invalidate(partition, names, writer))

    def _all(self, partition, keyspace, commands, room):
        """Until there is no room for a reply; above REPLY_BYTES there is for the first alone."""
        replies, left = [], min(room, limits.REPLY_BYTES)
        map_ = self.data.setdefault((partition, keyspace), {})
        for command in commands:
            if command[0] in (EXEC, FINGERPRINT):
                replies.append(self._internal(keyspace, partition, command))
                continue
            made = evaluate(command, map_.get(command[1]), int(time.time() * 1000), self._ttl_ms(keyspace))
            size = len(made.reply) if isinstance(made.reply, bytes) else 0
            if size > left and (replies or size > room):
                break
            left -= size
            replies.append(self._done(map_, made))
        return replies

    def _ttl_ms(self, keyspace):
        return self.settings_of(keyspace).ttl_seconds * 1000

    def _internal(self, keyspace, partition, command):
        def read(space, key):
            return self.data.get((partition, space), {}).get(key)

        now_ms = int(time.time() * 1000)
        if command[0] == FINGERPRINT:
            return fingerprint(read(keyspace, command[1]), now_ms)
        attempt = Attempt(keyspace, command, now_ms, None, None, self._ttl_ms(keyspace))
        reply, changes, *_ = run_transaction(attempt, read)
        for each in changes:
            map_ = self.data.setdefault((partition, each.keyspace), {})
            if each.value is None:
                map_.pop(each.key, None)
            else:
                map_[each.key] = (each.value, each.expire_at_ms)
        return reply

    def _done(self, map_, made):
        if isinstance(made.op, Put):
            map_[made.op.key] = (made.op.value, made.op.expire_at_ms)
        elif isinstance(made.op, Delete):
            map_.pop(made.op.key, None)
        return made.reply

    async def scan(self, partition, keyspace, after, limit):
        keys = sorted(key for key in self.data.get((partition, keyspace), {}) if key > after)
        return keys[:limit], None if len(keys) < limit else keys[limit - 1]

    async def count(self, partition, keyspace):
        return len(self.data.get((partition, keyspace), {}))

    async def clear(self, partition, keyspace, catalog=0):
        if self.failures:
            raise self.failures.pop(0)
        for place in list(self.data):
            if place[0] == partition and keyspace in (b"", place[1]):
                del self.data[place]

    def info(self):
        return {"stele_partitions": self.partitions}
