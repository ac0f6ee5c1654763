"""Clients on Redis connections: pipelines, transactions, scans and expiring keys, through any member.

They do what other clients do, on the same keys, and more whose answers they check themselves.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from stele.core.kv.commands import Failure
from stele.errors import Uncertain
from tests.fakes.network import Network
from tests.fakes.resp_connection import RespConnection
from tests.simulation.clients import PATIENCE_SECONDS, Client, Connection, Keys, command_of
from tests.simulation.history import Operation, Violation
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.ledger import COUNTED, WHOLE, Ledger
from tests.simulation.member import RESP_PORT
from tests.simulation.trace import Trace

SCANNED = "a scan returns every key that is there"
LIFETIME = "entries live as long as they were given"

KEPT_KEYS = 6
SCAN_CALLS_MAX = 400
"""Most answered calls of one scan: it ends although partitions move."""
BRIEF_SECONDS = (0.3, 1.0, 3.0)
CLOCK_SECONDS = 0.01
"""Expiry times are whole milliseconds of the owner's clock."""


class RedisClient(Client):
    """One application with a connection to each member that it asks."""

    def __init__(self, name: str, network: Network, kubelet: Kubelet, keys: Keys, trace: Trace) -> None:
        self._streams: dict[str, RespConnection] = {}
        self._session = Connection(None)
        self._kept: dict[bytes, float] = {}
        self._briefs = 0
        self._jobs = (
            (4, self._operate), (3, self._transfer), (2, self._audit_one), (2, self._many), (1, self._scan),
            (1, self._brief),
        )  # fmt: skip
        super().__init__(name, network, kubelet, keys, trace)

    async def _work(self) -> None:
        random = self._clock.random
        weights = [weight for weight, _ in self._jobs]
        while self.active:
            await asyncio.sleep(random.uniform(*self._keys.think_seconds))
            machines = self._kubelet.reached()
            if machines:
                ((_, job),) = random.choices(self._jobs, weights)
                await job(random.choice(machines))

    async def _operate(self, machine: Machine) -> None:
        await self._one(machine, self._keys.operation(self.name, self._clock.now))

    # -- connections

    async def _call(self, machine: Machine, *requests: Sequence[bytes]) -> list[Any] | None:
        """Return the replies; None when the connection was lost, or they took too long."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                connection = await self._connection(machine)
                return await connection.ask(*requests)
        except (ConnectionError, TimeoutError):
            self._drop(machine)
            return None

    async def _connection(self, machine: Machine) -> RespConnection:
        known = self._streams.get(machine.place)
        if known is None or not known.open:
            made = await self._loop.create_connection(RespConnection, machine.address, RESP_PORT)
            known = self._streams[machine.place] = made[1]
        return known

    async def _watch(self, machine: Machine, keys: Sequence[bytes]) -> list[Any] | None:
        """The values of watched keys; None when EXEC would not know of them any more.

        Another connection watches nothing.
        """
        read = await self._call(machine, [b"WATCH", *keys], *([b"GET", key] for key in keys))
        if read is None or any(isinstance(each, Failure) for each in read):
            self._drop(machine)
            return None
        connection = self._streams[machine.place]
        await asyncio.sleep(self._clock.random.uniform(0.0, 0.1))
        return read[1:] if connection.open and self._streams.get(machine.place) is connection else None

    def _drop(self, machine: Machine) -> None:
        connection = self._streams.pop(machine.place, None)
        if connection is not None:
            connection.close()

    async def _ask(self, machine: Machine, operation: Operation) -> object:
        reads = [[b"GET", operation.key]] * self._clock.random.choice((0, 0, 1, 3))
        replies = await self._call(machine, *reads, command_of(operation))
        return None if replies is None else (certain(replies[-1]), self._session)

    async def _many(self, machine: Machine) -> None:
        """Read or write several keys at once: each on its own happens at one moment."""
        operations = self._keys.several(self.name, self._clock.now)
        for each in operations:
            self._keys.histories.began(each, self._keys.touched(each))
        if operations[0].kind == "get":
            replies = await self._call(machine, [b"MGET", *(each.key for each in operations)])
            found = replies[0] if replies else Uncertain("no answer")
        else:
            pairs = [part for each in operations for part in (each.key, each.value)]
            replies = await self._call(machine, [b"MSET", *pairs])
            found = certain(replies[0]) if replies else Uncertain("no answer")
            if isinstance(found, Failure):
                found = Uncertain(f"some may be done: {found}")
        for place, each in enumerate(operations):
            self._note(each, (found[place] if isinstance(found, list) else found, self._session), 0)

    # -- transactions

    async def _transfer(self, machine: Machine) -> None:
        ledger = self._clock.random.choice(self._keys.ledgers)
        amount = self._clock.random.randint(1, 9)
        if self._clock.random.random() < 0.5:
            await self._transfer_watched(machine, ledger, amount)
            return
        by = [[b"DECRBY", ledger.x, b"%d" % amount], [b"INCRBY", ledger.y, b"%d" % amount]]
        await self._exec(machine, ledger, [*by, [b"INCR", ledger.count]])

    async def _transfer_watched(self, machine: Machine, ledger: Ledger, amount: int) -> None:
        """What another one changes in between makes EXEC do nothing."""
        read = await self._watch(machine, ledger.keys)
        if read is None:
            return
        x, y, count = (int(each or 0) for each in read)
        values = dict(zip(ledger.keys, (x - amount, y + amount, count + 1), strict=True))
        commands = [[b"SET", key, b"%d" % value] for key, value in values.items()]
        await self._exec(machine, ledger, commands, count + 1)

    async def _exec(
        self, machine: Machine, ledger: Ledger, commands: list[list[bytes]], count: int | None = None
    ) -> None:
        """Run a transaction that writes this count, or answers it last."""
        ledger.begun += 1
        replies = await self._call(machine, [b"MULTI"], *commands, [b"EXEC"])
        reply = Uncertain("no answer") if replies is None else certain(replies[-1])
        self._trace.note(self.name, f"{commands} -> {reply!r}", self._keys.partition(ledger.x))
        if isinstance(reply, list):
            if any(isinstance(each, Failure) for each in reply):
                raise Violation(WHOLE, f"a command of a transaction failed: {reply}", key=ledger.x)
            ledger.transferred(reply[-1] if count is None else count)
            self._trace.cover("transaction over a Redis connection")
        elif not isinstance(reply, Uncertain):
            ledger.begun -= 1

    async def _audit_one(self, machine: Machine) -> None:
        await self._audit(machine, self._clock.random.choice(self._keys.ledgers))

    async def _audit(self, machine: Machine, ledger: Ledger) -> bool:
        """Read all of a ledger in a transaction; whether that was answered."""
        least = max(ledger.counts, default=0)
        reads = [[b"GET", key] for key in ledger.keys]
        replies = await self._call(machine, [b"MULTI"], *reads, [b"EXEC"])
        values = None if replies is None else replies[-1]
        if not isinstance(values, list):
            return False
        ledger.check([int(each or 0) for each in values], least)
        self._trace.checked[WHOLE] += 1
        self._trace.checked[COUNTED] += 1
        return True

    def audit_all(self, machines: list[Machine]) -> "asyncio.Task[bool]":
        """Audit each ledger through one of these members; whether all were answered."""

        async def audit() -> bool:
            return all(
                [
                    await self._audit(self._clock.random.choice(machines), ledger)
                    for ledger in self._keys.ledgers
                ]
            )

        return self._loop.create_task(audit())

    # -- scans

    async def _scan(self, machine: Machine) -> None:
        """Scan through members that take turns: all keys that were there before are found."""
        await self._keep(machine)
        kept, found, cursor, calls = set(self._kept), set[bytes](), b"0", 0
        pattern = b"kept-%b-*" % self.name.encode()
        while self.active and (machines := self._kubelet.reached()):
            machine = self._clock.random.choice(machines)
            scan = [b"SCAN", cursor, b"COUNT", b"2", b"MATCH", pattern]
            replies = await self._call(machine, scan)
            if replies is None or isinstance(replies[0], Failure):
                await asyncio.sleep(self._clock.random.uniform(0.0, 0.1))
                continue
            calls += 1
            cursor = replies[0][0]
            found.update(replies[0][1])
            if cursor == b"0":
                break
            if calls > SCAN_CALLS_MAX:
                raise Violation(SCANNED, f"a scan took more than {SCAN_CALLS_MAX} calls")
        else:
            return
        if missing := kept - found:
            raise Violation(SCANNED, f"a scan did not return {sorted(missing)}", key=min(missing))
        self._trace.checked[SCANNED] += 1

    async def _keep(self, machine: Machine) -> None:
        """Write the keys that scans must return, once each."""
        for number in range(KEPT_KEYS):
            key = b"kept-%b-%d" % (self.name.encode(), number)
            if key not in self._kept:
                replies = await self._call(machine, [b"SET", key, b"kept"])
                if replies is not None and not isinstance(replies[0], Failure):
                    self._kept[key] = self._clock.now

    # -- expiry

    async def _brief(self, machine: Machine) -> None:
        """Write an entry that expires, and read it before and after that."""
        self._briefs += 1
        seconds = self._clock.random.choice(BRIEF_SECONDS)
        key = b"brief-%b-%d" % (self.name.encode(), self._briefs)
        began = self._clock.now
        written = await self._call(machine, [b"SET", key, b"brief", b"PX", b"%d" % (seconds * 1000)])
        ended = self._clock.now
        if written is None or isinstance(written[0], Failure):
            return
        while self.active and self._clock.now < ended + 1.5 * seconds:
            await asyncio.sleep(self._clock.random.uniform(0.1, 0.5) * seconds)
            machines = self._kubelet.reached()
            asked = self._clock.now
            replies = (
                await self._call(self._clock.random.choice(machines), [b"GET", key]) if machines else None
            )
            if replies is None or isinstance(replies[0], Failure):
                continue
            if replies[0] is None and self._clock.now < began + seconds - CLOCK_SECONDS:
                raise Violation(LIFETIME, f"{key!r} was gone before its {seconds} s", key=key)
            if replies[0] is not None and asked > ended + seconds + CLOCK_SECONDS:
                raise Violation(LIFETIME, f"{key!r} was there after its {seconds} s", key=key)
            self._trace.checked[LIFETIME] += 1


def certain(found: Any) -> Any:
    """A failure that leaves open what was done is Uncertain."""
    if isinstance(found, Failure) and found.code == "UNCERTAIN":
        return Uncertain(found.text)
    return found
