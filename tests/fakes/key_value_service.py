"""The fake of `KeyValueService` for tests of the RESP server, with ways to make it slow or fail.

Another member owns the partitions `elsewhere`.
"""

import asyncio
import time

from stele.core.kv.cluster_map import cluster_map
from stele.core.kv.commands import REPLY_BYTES_MAX, Delete, Put, evaluate
from stele.core.kv.transaction import EXEC, FINGERPRINT, fingerprint
from stele.core.table.table import Member, Partition
from stele.member import limits
from stele.member.serving.transactions import run_transaction


class FakeKeyValueService:
    """Every partition of every keyspace as a dict; `before_execute` may wait or raise."""

    def __init__(self, partitions=271):
        self._partitions = partitions
        self.data = {}
        self.calls = []
        self.running = 0
        self.running_max = 0
        self.delay_seconds = 0.0
        self.failures = []
        self.tasks = set()
        self.elsewhere = set()

    @property
    def partitions(self):
        return self._partitions

    def cluster_map(self):
        rows = [Partition(1, (0,))] * self._partitions
        for partition in self.elsewhere:
            rows[partition] = Partition(2, (1,))
        members = {n: Member(n, f"m{n}", f"uuid-{n}", f"10.0.0.{n + 1}") for n in (0, 1)}
        return cluster_map(rows, members, 0, epoch=sum(row.version for row in rows))

    def home(self, partition):
        return "10.0.0.2" if partition in self.elsewhere else ""

    def read_now(self, keyspace, partitions, keys):
        """Never at once: so every read goes the way that may wait."""

    def start(self, partition, keyspace, commands, outcome, room=REPLY_BYTES_MAX):
        def ended(task):
            error = task.exception()
            outcome.set_result(task.result()) if error is None else outcome.set_exception(error)

        task = asyncio.ensure_future(self.execute(partition, keyspace, commands, room))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(ended)

    async def execute(self, partition, keyspace, commands, room=REPLY_BYTES_MAX):
        self.calls.append((partition, keyspace, [list(command) for command in commands]))
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if self.failures:
                raise self.failures.pop(0)
            return self._all(partition, keyspace, commands, room)
        finally:
            self.running -= 1

    def _all(self, partition, keyspace, commands, room):
        """Until there is no room for a reply; above REPLY_BYTES there is for the first alone."""
        replies, left = [], min(room, limits.REPLY_BYTES)
        map_ = self.data.setdefault((partition, keyspace), {})
        for command in commands:
            if command[0] in (EXEC, FINGERPRINT):
                replies.append(self._internal(keyspace, partition, command))
                continue
            made = evaluate(command, map_.get(command[1]), int(time.time() * 1000))
            size = len(made.reply) if isinstance(made.reply, bytes) else 0
            if size > left and (replies or size > room):
                break
            left -= size
            replies.append(self._done(map_, made))
        return replies

    def _internal(self, keyspace, partition, command):
        def read(space, key):
            return self.data.get((partition, space), {}).get(key)

        now_ms = int(time.time() * 1000)
        if command[0] == FINGERPRINT:
            return fingerprint(read(keyspace, command[1]), now_ms)
        reply, changes, *_ = run_transaction(keyspace, command[2], now_ms, None, read)
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

    def info(self):
        return {"stele_partitions": self._partitions}
