"""Clients that move money between accounts, and append to lists and read them, by transactions.

Sums are looked at by each transaction that reads all accounts, lists when the run is over (`bank.py`).
"""

import asyncio
from typing import Any

from stele.core.kv.commands import Failure
from stele.errors import Uncertain
from tests.fakes.network import Network
from tests.simulation.bank import SUMS, Bank, Group, answered, command_of, commit
from tests.simulation.clients import Keys
from tests.simulation.history import Violation
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.redis_clients import RedisClient, certain
from tests.simulation.serializability.transactions import Append, Outcome, Read, Transaction
from tests.simulation.trace import Trace

ELSEWHERE = b"elsewhere"
"""A keyspace of its own, which is cleared again and again."""
OPERATIONS_MAX = 4
BRIEF_MS = (100, 1000)
IN_ONE = "transaction over a Redis connection"


class TransferClient(RedisClient):
    """One application with a connection to each member that it asks."""

    def __init__(
        self, name: str, network: Network, kubelet: Kubelet, keys: Keys, trace: Trace, *, bank: Bank
    ) -> None:
        self._bank = bank
        super().__init__(name, network, kubelet, keys, trace)
        self._jobs = (
            (3, self._move), (3, self._move_watched), (2, self._audit_any), (5, self._append),
            (3, self._append_watched), (2, self._single), (1, self._elsewhere),
            *([(8, self._move_and_back)] if bank.written_back else []),
        )  # fmt: skip

    def _group(self) -> Group:
        return self._clock.random.choice(self._bank.groups)

    async def _exec_of(self, machine: Machine, commands: list[list[bytes]]) -> Any:
        """Run MULTI, these and EXEC. A list of replies: done. Uncertain: nobody knows. Else: not done."""
        replies = await self._call(machine, [b"MULTI"], *commands, [b"EXEC"])
        reply = Uncertain("no answer") if replies is None else certain(replies[-1])
        self._trace.note(self.name, f"{commands} -> {reply!r}", self._keys.partition(commands[0][1]))
        if isinstance(reply, list):
            if any(isinstance(each, Failure) for each in reply):
                raise Violation(SUMS, f"a command of a transaction failed: {reply}", key=commands[0][1])
            partitions = {self._keys.partition(each[1]) for each in commands}
            self._trace.cover("transaction across partitions" if len(partitions) > 1 else IN_ONE)
        return reply

    # -- accounts

    def _drawn(self, group: Group) -> dict[bytes, int]:
        """By how much some accounts change: one pays all that others get."""
        random = self._clock.random
        payer, *others = random.sample(group.accounts, random.randint(2, len(group.accounts)))
        amounts = {each: random.randint(1, 9) for each in others}
        return {payer: -sum(amounts.values()), **amounts}

    async def _move_and_back(self, machine: Machine) -> None:
        changes = self._drawn(self._group())
        if isinstance(await self._exec_of(machine, _moves(changes)), list):
            await self._exec_of(machine, _moves({key: -by for key, by in changes.items()}))

    async def _move(self, machine: Machine) -> None:
        group, random = self._group(), self._clock.random
        commands = _moves(self._drawn(group))
        if random.random() < 0.2:
            lifetime = b"%d" % random.randint(*BRIEF_MS)
            commands.append([b"SET", random.choice(group.briefs), b"brief", b"PX", lifetime])
        await self._exec_of(machine, commands)

    async def _move_watched(self, machine: Machine) -> None:
        """What another one changes in between makes EXEC do nothing, also where the value came back."""
        changes = self._drawn(self._group())
        read = await self._watch(machine, list(changes))
        if read is not None and self._bank.written_back:
            read = await self._watch(machine, list(changes))
        if read is not None:
            values = {
                key: int(value or 0) + by for (key, by), value in zip(changes.items(), read, strict=True)
            }
            await self._exec_of(machine, [[b"SET", key, b"%d" % value] for key, value in values.items()])

    async def _audit_any(self, machine: Machine) -> None:
        await self._audit_group(machine, self._group())

    async def _audit_group(self, machine: Machine, group: Group) -> bool:
        """Read all accounts in one transaction; whether that was answered."""
        reply = await self._exec_of(machine, [[b"GET", key] for key in group.accounts])
        if not isinstance(reply, list):
            return False
        group.check([int(each or 0) for each in reply])
        self._trace.checked[SUMS] += 1
        return True

    # -- lists

    def _operations(self, group: Group) -> list[Append | Read]:
        count = self._clock.random.randint(1, OPERATIONS_MAX)
        return [self._bank.operation(self._clock.random, group) for _ in range(count)]

    async def _append(self, machine: Machine) -> None:
        operations = self._operations(self._group())
        transaction = self._bank.begin(self.name, operations, self._clock.now)
        self._end(transaction, await self._exec_of(machine, list(map(command_of, operations))))

    async def _append_watched(self, machine: Machine) -> None:
        """What was read before counts as read by the transaction, if it is done."""
        operations = self._operations(self._group())
        reads: list[Append | Read] = [Read(key) for key in dict.fromkeys(each.key for each in operations)]
        read = await self._watch(machine, [each.key for each in reads])
        if read is None:
            return
        before = [answered(each, value) for each, value in zip(reads, read, strict=True)]
        transaction = self._bank.begin(self.name, [*before, *operations], self._clock.now)
        self._end(transaction, await self._exec_of(machine, list(map(command_of, operations))))

    async def _single(self, machine: Machine) -> None:
        """One operation outside of a transaction."""
        operation = self._bank.operation(self._clock.random, self._group())
        transaction = self._bank.begin(self.name, [operation], self._clock.now)
        replies = await self._call(machine, command_of(operation))
        reply = Uncertain("no answer") if replies is None else certain(replies[0])
        self._trace.note(self.name, f"{operation} -> {reply!r}", self._keys.partition(operation.key))
        self._end(transaction, reply if isinstance(reply, Uncertain | Failure) else [reply])

    def _end(self, transaction: Transaction, reply: Any) -> None:
        if isinstance(reply, list):
            commit(transaction, reply, self._clock.now)
            self._keys.histories.acknowledged += 1
        elif isinstance(reply, Uncertain):
            self._keys.histories.unknown += 1
        else:
            transaction.outcome = Outcome.ABORTED

    # -- another keyspace, and the end

    async def _elsewhere(self, machine: Machine) -> None:
        """Write the same keys in another keyspace, or clear that: nothing changes here."""
        random, group = self._clock.random, self._group()
        key = random.choice([*group.accounts, *group.lists()])
        command = [b"FLUSHDB"] if random.random() < 0.3 else [b"SET", key, b"1000"]
        replies = await self._call(machine, [b"SELECT", ELSEWHERE], command, [b"SELECT", b"0"])
        if replies is None or isinstance(replies[-1], Failure):
            self._drop(machine)

    def audit_all(self, machines: list[Machine]) -> "asyncio.Task[bool]":
        """Audit each group and read all of its lists; whether all was answered."""

        async def audit() -> bool:
            done = []
            for group in self._bank.groups:
                done.append(await self._audit_group(self._clock.random.choice(machines), group))
                done.append(await self._read_lists(self._clock.random.choice(machines), group))
            return all(done)

        return self._loop.create_task(audit())

    async def _read_lists(self, machine: Machine, group: Group) -> bool:
        reads: list[Append | Read] = [Read(key) for key in group.lists()]
        transaction = self._bank.begin(self.name, reads, self._clock.now)
        self._end(transaction, await self._exec_of(machine, list(map(command_of, reads))))
        return transaction.outcome is Outcome.COMMITTED


def _moves(changes: dict[bytes, int]) -> list[list[bytes]]:
    """The commands that add to some accounts, and take from others."""
    return [
        [b"INCRBY", key, b"%d" % by] if by > 0 else [b"DECRBY", key, b"%d" % -by]
        for key, by in changes.items()
    ]
