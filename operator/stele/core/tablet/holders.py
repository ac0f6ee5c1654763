"""Which members hold operations of a tablet's log, as its owner knows."""

from collections.abc import Sequence

from stele.core.tablet.log import OpId
from stele.core.tablet.owner import Flow, Owner


def holders(owner: Owner, operations: Sequence[OpId]) -> tuple[int, bool] | None:
    """Return (how many backups hold all of them, whether they are committed).

    None when the log lacks one of them: it was lost with an earlier owner. The same is answered for one of an
    earlier owner that was trimmed, as its term is not known any more.
    """
    log = owner.tablet.log
    for term, index in operations:
        # The owner's log never loses operations of its own term.
        if not (log.holds((term, index)) or (term == owner.term and index <= log.last[1])):
            return None
    last = max(index for _, index in operations)
    if last <= log.committed:
        return len(owner.members), True
    progress = (owner.progress[member] for member in owner.members)
    return sum(each.flow is Flow.STREAM and each.match >= last for each in progress), False
