"""The cases of the join under writes are such that waves decide whether it ends."""

from collections import Counter

import pytest

from e2e.bench.paced import FULL, QUICK, VALUE_BYTES, Case, _keys
from stele.core.copy.waves import TABLET_SHARE, Flow, Waves, needed_log_bytes
from stele.core.kv.keyslot import partition_of
from stele.model.common import quantity_bytes


@pytest.mark.parametrize("case", [QUICK, FULL])
def test_all_at_once_do_not_fit_and_one_does(case: Case) -> None:
    written = case.written_per_second // case.tablets
    waves = Waves(case.bandwidth, case.log_space)
    at_once = sum(waves.admit(Flow(0, 1, case.tablet_bytes, written)) for _ in range(case.tablets))
    assert 1 <= at_once < case.tablets / 2
    assert case.written_per_second * case.least_seconds > case.log_space
    alone = needed_log_bytes(case.tablet_bytes, written, case.bandwidth)
    assert alone <= case.log_space * TABLET_SHARE


def test_the_writes_go_to_all_tablets_in_turn() -> None:
    case = Case(4, 10 * VALUE_BYTES, 1, 1 << 20, 1 << 20)
    numbers = [partition_of(key, 4) for key in _keys(case)]
    assert Counter(numbers) == dict.fromkeys(range(4), 10)
    assert numbers[:8] == [0, 1, 2, 3] * 2
    assert quantity_bytes(case.spec(1)["migration"]["logSpacePerMember"]) == 1 << 20
