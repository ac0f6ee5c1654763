"""Bugs planted in what clients on Redis connections use."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.core.kv.transaction import EXEC
from stele.core.tablet.owner import Phase
from stele.member.resp import scan
from stele.member.serving import executor, transactions
from stele.member.serving.executor import CommandExecutor
from stele.wire.storage.log_record import batch_record, split_batch, split_record
from stele.wire.transaction import Transaction
from tests.simulation.ledger import COUNTED, WHOLE
from tests.simulation.mutants.plant import Mutants
from tests.simulation.redis_clients import LIFETIME, SCANNED


def watches_not_compared() -> AbstractContextManager[Any]:
    """EXEC runs whatever became of the watched keys."""
    real = transactions.decode_transaction

    def decoded(body: bytes) -> Transaction:
        return Transaction([], real(body).commands)

    return patch.object(transactions, "decode_transaction", decoded)


def changes_logged_apart() -> AbstractContextManager[Any]:
    """The first change of a transaction is an operation of its own, and the others follow a little later."""
    real = CommandExecutor._internal

    def internal(self: CommandExecutor, replica: Any, request: Any, args: Any, records: list[bytes]) -> bool:
        logged = len(records)
        ran = real(self, replica, request, args, records)
        if args[0] == EXEC and len(records) > logged:
            owner, (first, *others) = replica.owner, split_batch(split_record(records.pop())[3])
            records.append(batch_record(owner.term, [first]))

            def follow() -> None:
                if replica.owner is owner and owner.phase is Phase.SERVING:
                    self._replicator.append(replica, [batch_record(owner.term, others)])

            asyncio.get_running_loop().call_later(0.02, follow)
        return ran

    return patch.object(CommandExecutor, "_internal", internal)


def scans_go_on_with_the_next_partition() -> AbstractContextManager[Any]:
    """A cursor that another member has issued is taken for the end of its partition."""
    real = scan._place

    def place(store: Any, positions: Any, keyspace: bytes, cursor: int) -> Any:
        found = real(store, positions, keyspace, cursor)
        return scan._Place(found.partition + 1) if found.again else found

    return patch.object(scan, "_place", place)


def nothing_expires() -> AbstractContextManager[Any]:
    """Owners read entries whose time is over; compiled reads, which do not ask here, are left out."""
    return patch.multiple(executor, _expired=lambda stored, now_ms: False, compiled=None)


REDIS: Mutants = {
    watches_not_compared: ("redis", 2, COUNTED),
    changes_logged_apart: ("redis", 0, WHOLE),
    scans_go_on_with_the_next_partition: ("redis", 0, SCANNED),
    nothing_expires: ("redis", 0, LIFETIME),
}
