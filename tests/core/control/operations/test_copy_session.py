"""A wave keeps its session alive, hears when it ended, and says whose fault a failure is."""

from dataclasses import dataclass

import pytest

from stele.core.control.commands import CloseSession, Command, FetchDirect, Ingest, OpenSession
from stele.core.control.operations.copy_session import (
    RENEW_SECONDS,
    SPARK_PATIENCE_SECONDS,
    SPARK_PATIENCE_SECONDS_MAX,
    CopySession,
    Engine,
    Job,
    SparkFailure,
    Stage,
)
from stele.core.control.rebalance.copy_scheduling import COPY_STALL_SECONDS, give_up_stalled

SOURCE, DESTINATION = 1, 2


@dataclass(frozen=True)
class Tablet:
    partition: int
    generation: int = 3
    bytes: int = 100


@dataclass(frozen=True)
class Opened:
    token: str = "secret"
    tablets: tuple[Tablet, ...] = (Tablet(7), Tablet(8))


@dataclass(frozen=True)
class Answer:
    code: str = "OK"
    detail: str = ""
    wait_ms: int = 0
    last: None = None
    generation: int = 0
    session: Opened | None = None


@dataclass(frozen=True)
class Told:
    session: str
    ended: str = ""


def wave(engine: Engine | None = Engine.DIRECT) -> CopySession:
    """With its snapshot made at second 0."""
    made = CopySession("s1", SOURCE, DESTINATION, {7: "m1", 8: "m2"}, {7: 4, 8: 4}, 0.0)
    ((member, opening),) = made.commands(0.0)
    assert member == SOURCE
    made.on_result(member, opening, Answer(session=Opened()), 0.0)
    assert made.stage is Stage.COPY
    made.engine = engine
    return made


def renewals(made: CopySession, now: float) -> list[OpenSession]:
    return [order for member, order in made.commands(now) if isinstance(order, OpenSession) and order.renew]


def renew(made: CopySession, now: float, answer: Answer = Answer()) -> OpenSession:
    (order,) = renewals(made, now)
    made.on_result(SOURCE, order, answer, now)
    return order


def test_the_lease_is_renewed_at_once_and_then_again_and_again() -> None:
    made = wave()
    first = renew(made, 0.1)
    assert (first.engine, first.destination, first.partitions) == ("Direct", DESTINATION, ())
    assert renewals(made, RENEW_SECONDS) == []
    renew(made, 0.2 + RENEW_SECONDS)
    assert renewals(made, 0.3 + RENEW_SECONDS) == []


def test_a_renewal_without_an_answer_is_sent_again() -> None:
    made = wave()
    (order,) = renewals(made, 0.1)
    made.on_result(SOURCE, order, Answer("WAIT"), 0.1)
    assert renewals(made, 0.2) == [order]


def test_another_rate_or_engine_is_told_at_once() -> None:
    made = wave(engine=None)
    renew(made, 0.1)
    made.bytes_per_second = 5
    assert renew(made, 0.2).bytes_per_second == 5
    made.engine = Engine.SPARK
    assert renew(made, 0.3).engine == "Spark"
    assert renewals(made, 0.4) == []


@pytest.mark.parametrize("stage", [Stage.OPEN, Stage.COPY, Stage.INGEST, Stage.CLOSE, Stage.CLOSED])
def test_each_stage_sends_its_own_orders(stage: Stage) -> None:
    made = wave()
    renew(made, 0.1)
    made.stage, made.closing = stage, {SOURCE, DESTINATION}
    wanted: dict[Stage, list[tuple[int, type]]] = {
        Stage.OPEN: [(SOURCE, OpenSession)],
        Stage.COPY: [(DESTINATION, FetchDirect)],
        Stage.INGEST: [(DESTINATION, Ingest)],
        Stage.CLOSE: [(SOURCE, CloseSession), (DESTINATION, CloseSession)],
        Stage.CLOSED: [],
    }
    sent: list[tuple[int, Command]] = made.commands(0.2)
    assert [(member, type(order)) for member, order in sent] == wanted[stage]


def test_a_source_that_does_not_know_the_session_ends_the_wave() -> None:
    made = wave()
    renew(made, 0.1, Answer("SESSION_LOST", "session s1 is not open here"))
    assert (made.stage, made.failure) == (Stage.CLOSE, "SESSION_LOST: session s1 is not open here")


def test_once_the_copy_is_there_nobody_misses_the_session() -> None:
    made = wave()
    made.stage = Stage.INGEST
    renew(made, 0.1, Answer("SESSION_LOST", "gone"))
    made.heard_sessions(())
    assert (made.stage, made.failure) == (Stage.INGEST, "")
    assert renewals(made, 0.2) == []


@pytest.mark.parametrize(
    ("told", "failure"),
    [
        (None, ""),
        ((Told("s0"), Told("s1")), ""),
        ((), "SESSION_LOST: the source does not know it any more"),
        ((Told("s1", "nobody renewed its lease"),), "SESSION_LOST: nobody renewed its lease"),
    ],
)
def test_what_the_source_tells_of_its_sessions(told: tuple[Told, ...] | None, failure: str) -> None:
    made = wave()
    made.heard_sessions(told)
    assert made.failure == failure


def test_a_source_with_too_many_sessions_is_asked_again() -> None:
    made = CopySession("s1", SOURCE, DESTINATION, {7: "m1"}, {7: 4}, 0.0)
    ((_, opening),) = made.commands(0.0)
    made.on_result(SOURCE, opening, Answer("BUSY", "16 sessions are open"), 0.0)
    assert (made.stage, made.commands(0.1)) == (Stage.OPEN, [(SOURCE, opening)])


@pytest.mark.parametrize(
    ("code", "engine", "blamed"),
    [
        ("NO_EXECUTORS: none could be placed", Engine.SPARK, True),
        ("DRIVER: it ended", Engine.SPARK, True),
        ("BAD_INPUT: cores: 65, expected 1 to 64", Engine.SPARK, True),
        ("COPIER_SILENT: no answer", Engine.SPARK, True),
        ("DRIVER: it ended", Engine.DIRECT, False),
        ("NO_SPACE: the volume is full", Engine.SPARK, False),
        ("SESSION_LOST: gone", Engine.SPARK, False),
        ("MEMBER_GONE: demo-1", Engine.SPARK, False),
        ("", Engine.SPARK, False),
    ],
)
def test_spark_is_blamed_for_what_another_engine_may_do_better(
    code: str, engine: Engine, blamed: bool
) -> None:
    made = wave(engine)
    if code:
        made.fail(code)
    assert made.blames_spark is blamed


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


def test_tasks_and_retries_never_count_backwards() -> None:
    made = wave(Engine.SPARK)
    made.heard_job(Job("RUNNING", 50, tasks=4, retries=2))
    made.heard_job(Job("RUNNING", 10, tasks=0, retries=0))
    assert (made.copied_bytes, made.tasks, made.retries) == (50, 4, 2)


@pytest.mark.parametrize("fragments", [True, False])
def test_the_source_hears_whether_tablets_come_in_fragments(fragments: bool) -> None:
    made = CopySession("s1", SOURCE, DESTINATION, {7: "m1"}, {7: 4}, 0.0, fragments)
    ((_, opening),) = made.commands(0.0)
    assert isinstance(opening, OpenSession)
    assert opening.fragments is fragments


def look(waves: list[CopySession], now: float, job: Job) -> None:
    """One look of the master, at which the copier tells the same of all."""
    for each in waves:
        each.heard_job(job)
        each.note_progress(now)
    give_up_stalled(waves, now)


def test_a_copy_that_stands_still_is_given_up_and_blames_the_engine() -> None:
    made = wave(Engine.SPARK)
    look([made], 0.0, Job("RUNNING", 50))
    look([made], COPY_STALL_SECONDS, Job("RUNNING", 50))
    assert made.stage is Stage.COPY
    look([made], COPY_STALL_SECONDS + 1, Job("RUNNING", 50))
    assert made.failure.startswith("STALLED: nothing new was told")
    assert made.blames_spark


@pytest.mark.parametrize("news", [Job("RUNNING", 51), Job("RUNNING", 49), Job("RUNNING", 50, retries=1)])
def test_whatever_is_new_keeps_a_copy_alive(news: Job) -> None:
    made = wave(Engine.SPARK)
    look([made], 0.0, Job("RUNNING", 50))
    look([made], COPY_STALL_SECONDS, news)
    look([made], 2 * COPY_STALL_SECONDS, news)
    assert made.stage is Stage.COPY


def test_a_copy_may_wait_for_its_turn_and_for_another_to_the_same_member() -> None:
    made, other = wave(Engine.SPARK), wave(Engine.SPARK)
    look([made], 0.0, Job("QUEUED"))
    look([made], 10 * COPY_STALL_SECONDS, Job("QUEUED"))
    assert made.stage is Stage.COPY
    made.heard_job(Job("RUNNING"))
    for turn in range(20):
        now = 10 * COPY_STALL_SECONDS + turn * COPY_STALL_SECONDS / 2
        made.note_progress(now)
        look([other], now, Job("RUNNING", turn))
        give_up_stalled([made, other], now)
    assert made.stage is other.stage is Stage.COPY
