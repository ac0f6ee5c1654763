"""Bugs planted in what clients with caches of their own hear (CLIENT TRACKING)."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.member.resp.connection import ClientConnection
from stele.member.tracking.near_caches import NearCaches
from tests.simulation.history import RECENT
from tests.simulation.mutants import serving
from tests.simulation.mutants.plant import Mutants
from tests.simulation.tracking_clients import OVERTAKEN


def messages_overtake_replies() -> AbstractContextManager[Any]:
    """A message is written at once, also while a request of its connection is under way."""

    def push(self: ClientConnection) -> None:
        if self._pushes is not None:
            self._write_pushes(self._pushes)

    return patch.object(ClientConnection, "push", push)


def vouched_for_from_receipt() -> AbstractContextManager[Any]:
    """A member counts what an owner vouches for from when it reads that, not from when it asked."""

    def vouched(self: NearCaches, link: Any, lease: Any) -> None:
        self._vouched[link.member] = self._now() + lease.seconds

    return patch.object(NearCaches, "vouched", vouched)


def clients_keep_what_rows_before_had() -> AbstractContextManager[Any]:
    """As `near_caches_outlive_rows`, for clients."""
    return serving.near_caches_outlive_rows()


def clients_hear_after_the_answer() -> AbstractContextManager[Any]:
    """As `told_after_the_answer`, for clients."""
    return serving.told_after_the_answer()


def clients_registered_after_the_read() -> AbstractContextManager[Any]:
    """As `registered_after_the_read`, for clients."""
    return serving.registered_after_the_read()


TRACKING: Mutants = {
    vouched_for_from_receipt: ("tracking", 33, RECENT),
    messages_overtake_replies: ("tracking", 5, OVERTAKEN),
    clients_keep_what_rows_before_had: ("tracking", 1, RECENT),
    clients_hear_after_the_answer: ("tracking", 3, RECENT),
    clients_registered_after_the_read: ("tracking", 5, RECENT),
}
