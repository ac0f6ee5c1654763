"""Who is alive: evidence counts from when a request was sent, and an end must be confirmed."""

from dataclasses import dataclass

import msgspec

from stele.core.control.commands import ExchangeReply
from stele.core.control.failure_detector import MemberLiveness, MemberObject, PodFacts, Timing

TIMING = Timing(heartbeat=1.0, lease=3.0, grace=30.0)


@dataclass
class Observed:
    """One contact, told second by second."""

    liveness: MemberLiveness

    def shows(
        self, now: float, process: str, ended: bool = False, uid: str = "pod", since: float = 0.0
    ) -> None:
        pod = PodFacts(uid, "10.0.0.1", process, ended, since_seconds=since)
        self.liveness.observe_pod(MemberObject(0, "demo-0", pod=pod), now)
        self.liveness.evaluate(now)

    def removed(self, now: float, uid: str = "pod", since: float = 0.0, new: str = "") -> None:
        """Its pod's object is gone, and perhaps another has its name."""
        pod = PodFacts(new, "", "", False) if new else None
        former = PodFacts(uid, "10.0.0.1", "a", False, since_seconds=since)
        self.liveness.observe_pod(MemberObject(0, "demo-0", pod=pod, former_pod=former), now)
        self.liveness.evaluate(now)

    def answers(
        self, sent: float, incarnation: int = 1, pod: str = "pod", started: float = 100.7, boot: str = "boot"
    ) -> None:
        reply = ExchangeReply("OK", "", "uuid", "cluster", incarnation, 1, 0, 0)
        process = {"pod_uid": pod, "started_seconds": started, "boot_id": boot}
        self.liveness.on_report(msgspec.structs.replace(reply, **process), sent)
        self.liveness.evaluate(sent)

    def fails(self, sent: float) -> None:
        self.liveness.failed_seconds = sent
        self.liveness.evaluate(sent)


def living() -> Observed:
    """Its container started in second 100 of its node's clock."""
    observed = Observed(MemberLiveness(0, 0.0))
    observed.shows(0.0, "a", since=100.0)
    observed.answers(1.0)
    return observed


def test_an_end_counts_when_a_later_request_failed() -> None:
    observed = living()
    observed.shows(2.0, "a", ended=True, since=102.0)
    assert not observed.liveness.ended
    assert observed.liveness.doubtful
    observed.fails(2.01)
    assert observed.liveness.ended
    assert observed.liveness.known_dead
    assert observed.liveness.gone(2.01, TIMING)


def test_late_news_of_a_process_whose_successor_answers_is_no_end() -> None:
    observed = living()
    observed.shows(2.0, "b")
    observed.answers(2.01, incarnation=2)
    observed.shows(2.6, "b")
    assert not observed.liveness.ended
    assert observed.liveness.reachable(2.6, TIMING)


def test_it_stays_ended_until_it_answers_whatever_is_told_of_its_successor() -> None:
    observed = living()
    observed.shows(2.0, "a", ended=True)
    observed.fails(2.1)
    observed.shows(3.0, "b")
    assert observed.liveness.ended
    observed.answers(3.5, incarnation=2)
    assert not observed.liveness.ended


def test_silence_alone_is_unreachable_but_not_known_dead() -> None:
    observed = living()
    observed.shows(6.0, "a")
    assert not observed.liveness.reachable(6.0, TIMING)
    assert observed.liveness.gone(6.0, TIMING)
    assert not observed.liveness.known_dead


def test_a_pod_that_is_gone_from_the_api_may_still_run() -> None:
    observed = living()
    observed.removed(2.0, since=100.0)
    observed.fails(2.1)
    assert observed.liveness.ended
    assert not observed.liveness.known_dead


def test_a_pod_that_was_gone_after_its_end_was_shown_is_proof() -> None:
    observed = living()
    observed.removed(2.0, since=102.0)
    observed.fails(2.1)
    assert observed.liveness.known_dead


def test_a_new_pod_proves_nothing_of_the_process_before_it() -> None:
    """Not when it appears, and not when its container ends because that process has the volume."""
    observed = living()
    observed.removed(2.0, since=100.0, new="pod-2")
    observed.fails(2.1)
    assert (observed.liveness.ended, observed.liveness.known_dead) == (True, False)
    observed.shows(3.0, "b", ended=True, uid="pod-2", since=103.0)
    observed.fails(3.1)
    assert (observed.liveness.ended, observed.liveness.known_dead) == (True, False)


def test_late_news_of_the_process_that_answers_is_no_proof() -> None:
    """A restarted container is shown only now; the process in it has answered, and then does not."""
    observed = living()
    observed.answers(2.0, incarnation=2, started=102.3)
    observed.shows(2.1, "b", since=102.0)
    observed.fails(2.2)
    assert not observed.liveness.known_dead
    observed.shows(4.0, "b", ended=True, since=104.0)
    observed.fails(4.1)
    assert observed.liveness.known_dead


def test_what_was_shown_before_an_answer_is_no_proof_that_its_process_ended() -> None:
    """The start of its container was noted late, or its node's clock was set back before it answered."""
    observed = living()
    observed.shows(2.0, "a", since=103.0)
    observed.answers(2.5)
    observed.shows(2.6, "a", since=103.0)
    observed.removed(3.0, since=103.0)
    observed.fails(3.1)
    assert (observed.liveness.ended, observed.liveness.known_dead) == (True, False)


def test_what_a_new_master_saw_before_the_first_answer_is_no_proof() -> None:
    observed = Observed(MemberLiveness(0, 0.0))
    observed.shows(0.0, "a", since=103.0)
    observed.answers(1.0)
    observed.removed(2.0, since=103.0)
    observed.fails(2.1)
    assert (observed.liveness.ended, observed.liveness.known_dead) == (True, False)


def test_an_end_that_is_shown_after_the_last_answer_is_proof_although_news_before_it_was_not() -> None:
    observed = living()
    observed.shows(2.0, "a", since=103.0)
    observed.answers(2.5)
    observed.shows(4.0, "a", ended=True, since=104.0)
    observed.fails(4.1)
    assert observed.liveness.known_dead


def test_an_answer_to_a_request_from_before_the_news_leaves_the_proof() -> None:
    observed = living()
    observed.shows(2.0, "a", ended=True, since=103.0)
    observed.answers(1.9)
    observed.fails(2.1)
    assert observed.liveness.known_dead


def test_old_news_that_is_shown_again_is_no_proof() -> None:
    """A watch that begins again may tell what was before, and then what is."""
    observed = living()
    observed.shows(2.0, "a", since=103.0)
    observed.answers(2.5)
    observed.shows(3.0, "a", since=100.0)
    observed.shows(3.1, "a", since=103.0)
    observed.removed(3.2, since=103.0)
    observed.fails(3.3)
    assert (observed.liveness.ended, observed.liveness.known_dead) == (True, False)


def test_a_restart_of_the_container_proves_the_end_of_the_process_before() -> None:
    observed = living()
    observed.shows(2.0, "b", since=102.0)
    observed.fails(2.1)
    assert observed.liveness.known_dead


def test_without_the_pod_that_answered_nothing_is_proven() -> None:
    observed = Observed(MemberLiveness(0, 0.0))
    observed.shows(0.0, "a", since=100.0)
    observed.answers(1.0, pod="")
    observed.shows(2.0, "a", ended=True, since=102.0)
    observed.fails(2.1)
    assert (observed.liveness.ended, observed.liveness.known_dead) == (True, False)


def test_a_successor_on_another_node_leaves_open_whether_its_predecessor_runs() -> None:
    """One on the same node has the lock of the volume, so nobody else has."""
    for boot, twice in (("boot", False), ("another", True)):
        observed = living()
        observed.answers(2.0, incarnation=2, pod="pod-2", started=105.5, boot=boot)
        assert observed.liveness.may_run_twice == twice
        observed.shows(3.0, "b", ended=True, uid="pod-2", since=107.0)
        observed.fails(3.1)
        assert observed.liveness.known_dead == (not twice)


def twice() -> Observed:
    """Its process of pod-2 runs on another node, and nothing was shown of the end of the one in `pod`."""
    observed = living()
    observed.answers(2.0, incarnation=2, pod="pod-2", started=105.5, boot="another")
    assert observed.liveness.may_run_twice
    return observed


def test_what_shows_later_that_the_predecessor_ended_ends_the_doubt() -> None:
    observed = twice()
    observed.removed(3.0, since=100.0, new="pod-2")
    assert observed.liveness.may_run_twice, "its start is no news"
    observed.removed(4.0, since=104.0, new="pod-2")
    assert not observed.liveness.may_run_twice
    observed.shows(5.0, "b", ended=True, uid="pod-2", since=107.0)
    observed.fails(5.1)
    assert observed.liveness.known_dead


def test_a_successor_on_the_node_of_the_doubted_process_ends_the_doubt_of_that_one_alone() -> None:
    observed = twice()
    observed.answers(3.0, incarnation=3, pod="pod-3", started=110.5)
    assert list(observed.liveness.doubted) == ["another"]
    observed.answers(4.0, incarnation=4, pod="pod-4", started=115.5, boot="another")
    assert list(observed.liveness.doubted) == ["boot"]
    observed.answers(5.0, incarnation=5, pod="pod-4", started=120.5, boot="another")
    assert list(observed.liveness.doubted) == ["boot"]


def test_a_successor_in_the_same_pod_after_a_restart_of_the_node_leaves_no_doubt() -> None:
    observed = living()
    observed.answers(2.0, incarnation=2, started=105.5, boot="another")
    assert not observed.liveness.may_run_twice


def test_an_answer_of_the_doubted_process_is_no_end_of_it() -> None:
    observed = twice()
    observed.shows(2.5, "b", uid="pod-2", since=105.0)
    observed.answers(3.0)
    assert list(observed.liveness.doubted) == ["another"]
    observed.answers(3.5, incarnation=2, pod="pod-2", started=105.5, boot="another")
    assert list(observed.liveness.doubted) == ["boot"]


def test_a_process_that_does_not_say_where_it_runs_is_doubted_for_good() -> None:
    observed = Observed(MemberLiveness(0, 0.0))
    observed.shows(0.0, "a", since=100.0)
    observed.answers(1.0, pod="", boot="")
    observed.answers(2.0, incarnation=2, pod="", boot="")
    observed.removed(3.0, since=104.0, new="pod-2")
    observed.answers(4.0, incarnation=3, pod="pod-2", started=105.5)
    assert observed.liveness.may_run_twice


def test_its_place_is_kept_for_the_grace_period() -> None:
    observed = living()
    observed.liveness.note_loss(6.0, TIMING)
    assert observed.liveness.in_grace(35.0, TIMING)
    assert not observed.liveness.in_grace(36.1, TIMING)
    observed.answers(40.0)
    observed.liveness.note_loss(40.0, TIMING)
    assert not observed.liveness.in_grace(40.0, TIMING)
