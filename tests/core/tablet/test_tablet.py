"""Log matching; what a tablet decides is in `tests/golden/tablet`."""

from itertools import product

from stele.core.table.table import Partition
from stele.core.tablet.follower import Tablet
from stele.core.tablet.log import Log


def tablet(*terms: int) -> Tablet:
    log = Log()
    for term in terms:
        log.append(term, 1, 10)
    follower = Tablet(0, 1, log, 0)
    follower.row = Partition(4, (0, 1, 2))
    return follower


def test_log_matching_after_any_two_histories() -> None:
    """Whatever two logs with a common front hold, taking the owner's from its front makes them equal."""
    for common, mine, theirs in product(range(3), product((2, 3), repeat=2), product((2, 3, 4), repeat=3)):
        if list(mine) != sorted(mine) or list(theirs) != sorted(theirs):
            continue
        follower, terms = tablet(*[1] * common, *mine), [*[1] * common, *theirs]
        place = follower.place((0, 0), terms)
        if place.cut is not None:
            follower.log.truncate(place.cut)
        for term in terms[place.skip :]:
            follower.log.append(term, 1, 1)
        matched = len(terms)
        assert [follower.log.term_at(i + 1) for i in range(matched)] == terms
