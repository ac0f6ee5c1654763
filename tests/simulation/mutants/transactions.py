"""Bugs planted in transactions, for the clients that move money and append to lists."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.core.kv import two_phase
from stele.core.kv.transaction import EXEC
from stele.core.kv.two_phase import Outcome, Step
from stele.errors import Unavailable
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.request import Request
from stele.member.resp.transactions import Transaction as Watching
from stele.member.serving import participant, roles, transactions
from stele.wire.transaction import Transaction
from tests.simulation.bank import SUMS
from tests.simulation.convergence import TRANSACTIONS_END
from tests.simulation.mutants import redis
from tests.simulation.mutants.plant import Mutants
from tests.simulation.serializability.transactions import SERIALIZABLE


def changes_logged_in_two_operations() -> AbstractContextManager[Any]:
    """As `changes_logged_apart`, where accounts are moved between."""
    return redis.changes_logged_apart()


def watches_forgotten() -> AbstractContextManager[Any]:
    """As `watches_not_compared`, in one partition or several."""
    real = transactions._run

    def run(attempt: Any, transaction: Transaction, read: Any) -> Any:
        return real(attempt, Transaction([], transaction.commands), read)

    return patch.object(transactions, "_run", run)


def later_reads_not_compared() -> AbstractContextManager[Any]:
    """A watched key is compared by EXEC alone, not with what the connection read of it since."""
    return patch.object(Watching, "see", lambda self, keyspace, key, fingerprint: None)


def exec_sent_again() -> AbstractContextManager[Any]:
    """A transaction whose owner was lost is sent once more, although it may be done."""
    real = Request.may_repeat

    def may_repeat(self: Request) -> bool:
        return any(args and args[0] == EXEC for args in self.commands) or bool(real.__get__(self))

    return patch.object(Request, "may_repeat", property(may_repeat))


def unknown_told_as_not_done() -> AbstractContextManager[Any]:
    """What was on its way to an owner that is lost counts as refused."""

    def uncertain(self: DelayedReplies, request: Request) -> None:
        request.failed(Unavailable("nothing was done"))

    return patch.object(DelayedReplies, "uncertain", uncertain)


# -- across partitions


def _without_outcome(name: str) -> AbstractContextManager[Any]:
    """A function of the decider whose outcome is not logged; what else it logs is."""
    real: Callable[..., Step] = getattr(two_phase, name)

    def step(*args: Any) -> Step:
        made = real(*args)
        return made._replace(writes=tuple(each for each in made.writes if each.of is not Outcome))

    return patch.object(two_phase, name, step)


def nothing_is_locked() -> AbstractContextManager[Any]:
    """A prepared part holds no locks."""
    return patch.object(participant, "effect", lambda *_: None)


def decided_in_memory_alone() -> AbstractContextManager[Any]:
    """The coordinator logs its own changes, and not that the transaction is committed."""
    return _without_outcome("decide")


def locks_not_rebuilt() -> AbstractContextManager[Any]:
    """A new owner, or one that starts again, does not know which keys are locked."""
    return patch.object(roles, "rebuild_locks", lambda *_: None)


def outcomes_forgotten_at_once() -> AbstractContextManager[Any]:
    """A mark removes outcomes of processes that ended although participants do not know them."""
    return patch.object(two_phase, "is_forgettable", lambda id, outcome, mark: True)


TRANSACTIONS: Mutants = {
    changes_logged_in_two_operations: ("transfer", 0, SUMS),
    watches_forgotten: ("transfer", 0, SUMS),
    later_reads_not_compared: ("transfer", 7, SUMS),
    exec_sent_again: ("transfer", 81, SERIALIZABLE),
    unknown_told_as_not_done: ("transfer", 19, SERIALIZABLE),
    nothing_is_locked: ("transfer", 1, SUMS),
    decided_in_memory_alone: ("transfer", 16, SUMS),
    outcomes_forgotten_at_once: ("struck", 48, SUMS),
    locks_not_rebuilt: ("struck", 24, TRANSACTIONS_END),
}
