"""Who holds operations, as the owner knows."""

import pytest

from stele.core.table.table import Partition
from stele.core.tablet.follower import Tablet
from stele.core.tablet.holders import holders
from stele.core.tablet.log import Log, OpId
from stele.core.tablet.owner import Flow, Owner, Phase


def owner() -> Owner:
    """Term 7 began at 11, after terms 3 and 6; 12 is committed, 14 is the last, backup 2 does not answer."""
    log = Log()
    for term, count in ((3, 5), (6, 5), (7, 4)):
        log.append(term, count, 100_000)
    tablet = Tablet(0, 0, log, 7)
    tablet.adopt(Partition(7, (0, 1, 2)))
    made = Owner(tablet, None, None)
    made.phase = Phase.SERVING
    log.commit(12)
    for member, match in ((1, 14), (2, 13)):
        progress = made.progress[member]
        progress.flow, progress.match, progress.next = Flow.STREAM, match, 15
    return made


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ([(7, 12)], (2, True)),
        ([(3, 4), (7, 11)], (2, True)),
        ([(7, 13)], (2, False)),
        ([(7, 14)], (1, False)),
        ([(7, 12), (7, 14)], (1, False)),
        ([(7, 15)], None),
        ([(3, 6), (7, 12)], None),
        ([(6, 11)], None),
    ],
)
def test_who_holds_operations(operations: list[OpId], found: tuple[int, bool] | None) -> None:
    assert holders(owner(), operations) == found


def test_what_was_only_sent_is_not_held() -> None:
    made = owner()
    made.progress[1].match = 12
    assert holders(made, [(7, 14)]) == (0, False)


def test_a_member_that_is_not_fed_is_not_counted() -> None:
    made = owner()
    made.disconnected(1)
    assert holders(made, [(7, 13)]) == (1, False)


def test_of_trimmed_operations_the_owners_own_are_known() -> None:
    made = owner()
    log = made.tablet.log
    log.apply(12)
    log.trim(11)
    assert holders(made, [(7, 11)]) == (2, True)
    assert holders(made, [(6, 9)]) is None
