"""How many tablets are copied at once: those whose logs fit."""

import pytest

from stele.core.copy.waves import UNLIMITED_BYTES_PER_SECOND, Flow, Waves, needed_log_bytes

MIB = 1 << 20


def admitted(waves: Waves, flow: Flow, most: int = 100) -> int:
    """How many tablets like this one are admitted."""
    return next((count for count in range(most) if not waves.admit(flow)), most)


@pytest.mark.parametrize("space_mib", [64, 256, 1024])
def test_as_many_are_copied_as_what_is_written_meanwhile_fits_into_half_of_the_space(space_mib: int) -> None:
    """n tablets take n times as long, so n times as much is written to each of n."""
    flow = Flow(0, 1, 200 * MIB, written_bytes_per_second=MIB)
    count = admitted(Waves(20 * MIB, space_mib * MIB), flow)
    seconds = count * 200 / 20
    assert count * seconds <= space_mib / 2
    assert (count + 1) * (count + 1) * 200 / 20 > space_mib / 2


def test_the_first_is_always_copied_and_then_alone() -> None:
    waves, hot = Waves(MIB, MIB), Flow(0, 1, 1000 * MIB, written_bytes_per_second=MIB)
    assert admitted(waves, hot) == 1
    assert not waves.admit(Flow(2, 1, MIB))
    assert not waves.admit(Flow(0, 3, MIB))
    assert waves.admit(Flow(2, 4, MIB))


def test_nothing_overtakes_a_tablet_that_has_to_wait() -> None:
    waves = Waves(MIB, 8 * MIB, [Flow(0, 1, MIB, MIB)])
    assert not waves.admit(Flow(2, 1, 1000 * MIB, MIB))
    assert not waves.admit(Flow(2, 1, 1))
    assert waves.admit(Flow(2, 3, 1))


def test_without_writes_or_a_limit_no_wave_is_cut() -> None:
    assert admitted(Waves(MIB, MIB), Flow(0, 1, 1000 * MIB)) == 100
    assert admitted(Waves(0, 1000 * MIB), Flow(0, 1, UNLIMITED_BYTES_PER_SECOND // 100, MIB)) == 100


def test_what_was_written_since_the_start_counts() -> None:
    flow = Flow(0, 1, MIB, written_bytes_per_second=MIB)
    fresh = Waves(MIB, 100 * MIB, [flow] * 2)
    late = Waves(MIB, 100 * MIB, [Flow(0, 1, MIB, MIB, log_bytes=25 * MIB)] * 2)
    assert admitted(fresh, flow) == 5
    assert admitted(late, flow) == 0


def test_a_copy_that_failed_often_is_in_small_waves_only() -> None:
    waves = Waves(MIB, MIB, [Flow(0, 1, MIB, parallel_max=2)])
    assert admitted(waves, Flow(2, 1, MIB)) == 1
    assert not Waves(MIB, MIB, [Flow(0, 1, MIB)] * 2).admit(Flow(2, 1, MIB, parallel_max=2))


def test_the_log_of_one_copy_is_what_is_written_while_it_is_copied() -> None:
    assert needed_log_bytes(200 * MIB, 10 * MIB, 20 * MIB) == 100 * MIB
    assert needed_log_bytes(2 * UNLIMITED_BYTES_PER_SECOND, 5, 0) == 10
