"""Bugs planted in what owners answer before it is committed."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.core.tablet.owner import Flow, Owner
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.serving import executor
from tests.simulation.asynchronous import CONFIRMED, ONLY_WITH_AN_OWNER
from tests.simulation.mutants.plant import Mutants


def handed_over_undrained() -> AbstractContextManager[Any]:
    """A frozen owner hands over as soon as it has answered everything, and not when all is committed."""

    def handed_over(self: Owner) -> Any:
        learner, log = self.learner, self.tablet.log
        if learner is None or not self.frozen or self.progress[learner.member].flow is not Flow.STREAM:
            return None
        return log.term_at(log.committed), log.committed

    return patch.object(Owner, "handed_over", property(handed_over))


def answered_without_a_lease() -> AbstractContextManager[Any]:
    """An owner answers early although another may have replaced it."""
    real = DelayedReplies.held

    def held(self: DelayedReplies, replica: Any) -> None:
        with patch.object(DelayedReplies, "may_read", lambda self, replica: True):
            real(self, replica)

    return patch.object(DelayedReplies, "held", held)


def sent_counts_as_held() -> AbstractContextManager[Any]:
    """WAIT counts the members that an operation was sent to."""

    def holders(owner: Owner, operations: Any) -> Any:
        last = max(index for _, index in operations)
        sent = sum(owner.progress[member].next > last for member in owner.members)
        return sent, sent == len(owner.members)

    return patch.object(executor, "holders", holders)


ASYNCHRONOUS: Mutants = {
    handed_over_undrained: ("async", 24, "who takes over has everything"),
    answered_without_a_lease: ("async", 10, ONLY_WITH_AN_OWNER),
    sent_counts_as_held: ("async", 18, CONFIRMED),
}
