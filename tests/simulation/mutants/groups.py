"""Bugs planted in how keyspaces get partitions of their own."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.core.control.rebalance import groups
from stele.member.replication.routes import Routes
from stele.member.serving.backup_reads import BackupReads
from tests.simulation.group_clients import OWN
from tests.simulation.history import LINEARIZABLE
from tests.simulation.mutants.plant import Mutants


def routed_by_the_main_partitions() -> AbstractContextManager[Any]:
    """Members go on with the partitions outside of groups when a keyspace has its own."""
    real = Routes.use

    def use(self: Routes, *stored: Any) -> None:
        real(self, *stored)
        self._own = {name: own for name, own in self._own.items() if name in self.homeless}

    return patch.object(Routes, "use", use)


def added_while_there_are_entries() -> AbstractContextManager[Any]:
    """The master asks no owner whether it has entries of the keyspace before it adds the partitions."""
    return patch.object(groups, "_is_vacant", lambda *_: True)


def every_copy_answers() -> AbstractContextManager[Any]:
    """A member answers reads of a Replicated keyspace whenever it has a copy."""
    return patch.object(
        BackupReads, "_backup_may_answer", lambda _self, replica, *_: bool(replica.tablet.named)
    )


GROUPS: Mutants = {
    routed_by_the_main_partitions: ("groups", 7, OWN),
    added_while_there_are_entries: ("groups", 0, LINEARIZABLE),
    every_copy_answers: ("groups", 2, "reads from backups are recent, and in order"),
}
