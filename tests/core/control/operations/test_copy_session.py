"""When a copy stands still, and when Spark is tried again; the rest is in `tests/golden/session`."""

import pytest

from stele.core.control.operations.copy_session import (
    SPARK_PATIENCE_SECONDS,
    SPARK_PATIENCE_SECONDS_MAX,
    CopySession,
    Engine,
    Job,
    SparkFailure,
    Stage,
)
from stele.core.control.rebalance.copy_scheduling import COPY_STALL_SECONDS, give_up_stalled


def copying() -> CopySession:
    """By Spark, with its snapshot made."""
    return CopySession("s1", 1, 2, {7: "m1"}, {7: 4}, 0.0, stage=Stage.COPY, engine=Engine.SPARK)


def test_spark_is_left_alone_for_longer_each_time_it_fails_again() -> None:
    first = SparkFailure.after(None, "NO_EXECUTORS: none", 0.0)
    assert first.until_seconds == SPARK_PATIENCE_SECONDS
    # Two more waves of the same moment: nothing new is known.
    assert SparkFailure.after(first, "DRIVER: it ended", 1.0).until_seconds == first.until_seconds
    again = SparkFailure.after(first, "NO_EXECUTORS: none", first.until_seconds)
    assert again.until_seconds == first.until_seconds + 2 * SPARK_PATIENCE_SECONDS
    for _ in range(9):
        again = SparkFailure.after(again, "NO_EXECUTORS: none", again.until_seconds)
    assert again.patience_seconds == SPARK_PATIENCE_SECONDS_MAX


def look(waves: list[CopySession], now: float, job: Job) -> None:
    """One look of the master, at which the copier tells the same of all."""
    for each in waves:
        each.on_job(job)
        each.note_progress(now)
    give_up_stalled(waves, now)


def test_a_copy_that_stands_still_is_given_up_and_blames_the_engine() -> None:
    made = copying()
    look([made], 0.0, Job("RUNNING", 50))
    look([made], COPY_STALL_SECONDS, Job("RUNNING", 50))
    assert made.stage is Stage.COPY
    look([made], COPY_STALL_SECONDS + 1, Job("RUNNING", 50))
    assert str(made.failure).startswith("STALLED: the copy made no progress")
    assert made.blames_spark


@pytest.mark.parametrize("news", [Job("RUNNING", 51), Job("RUNNING", 49), Job("RUNNING", 50, retries=1)])
def test_whatever_is_new_keeps_a_copy_alive(news: Job) -> None:
    made = copying()
    look([made], 0.0, Job("RUNNING", 50))
    look([made], COPY_STALL_SECONDS, news)
    look([made], 2 * COPY_STALL_SECONDS, news)
    assert made.stage is Stage.COPY


def test_a_copy_may_wait_for_its_turn_and_for_another_to_the_same_member() -> None:
    made, other = copying(), copying()
    look([made], 0.0, Job("QUEUED"))
    look([made], 10 * COPY_STALL_SECONDS, Job("QUEUED"))
    assert made.stage is Stage.COPY
    made.on_job(Job("RUNNING"))
    for turn in range(20):
        now = 10 * COPY_STALL_SECONDS + turn * COPY_STALL_SECONDS / 2
        made.note_progress(now)
        look([other], now, Job("RUNNING", turn))
        give_up_stalled([made, other], now)
    assert made.stage is other.stage is Stage.COPY
