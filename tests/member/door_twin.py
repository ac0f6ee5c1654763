"""The in-memory twin of ports.Store that the tests of the door use, with ways to make it slow or fail."""

import asyncio
import time

from stele.core.commands import Delete, Put, evaluate


class MemoryStore:
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

    @property
    def partitions(self):
        return self._partitions

    def read_now(self, keyspace, partitions, keys):
        """Never at once: so every read goes the way that may wait."""

    def start(self, partition, keyspace, commands, outcome):
        def ended(task):
            error = task.exception()
            outcome.set_result(task.result()) if error is None else outcome.set_exception(error)

        task = asyncio.ensure_future(self.execute(partition, keyspace, commands))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(ended)

    async def execute(self, partition, keyspace, commands):
        self.calls.append((partition, keyspace, [list(command) for command in commands]))
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if self.failures:
                raise self.failures.pop(0)
            return [self._one(partition, keyspace, command) for command in commands]
        finally:
            self.running -= 1

    def _one(self, partition, keyspace, command):
        map_ = self.data.setdefault((partition, keyspace), {})
        made = evaluate(command, map_.get(command[1]), int(time.time() * 1000))
        if isinstance(made.op, Put):
            map_[made.op.key] = (made.op.value, made.op.expire_at_ms)
        elif isinstance(made.op, Delete):
            map_.pop(made.op.key, None)
        return made.reply

    async def scan(self, partition, keyspace, after, limit):
        keys = sorted(key for key in self.data.get((partition, keyspace), {}) if key > after)
        return keys[:limit], len(keys) < limit

    async def count(self, partition, keyspace):
        return len(self.data.get((partition, keyspace), {}))

    def info(self):
        return {"stele_partitions": self._partitions}
