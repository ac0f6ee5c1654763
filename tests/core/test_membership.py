"""Who is alive: evidence counts from when a request was sent, and an end must be confirmed."""

from dataclasses import dataclass

from stele.core.membership import Contact, PodFacts, Seen, Timing
from stele.wire.messages import ExchangeReply

TIMING = Timing(heartbeat=1.0, lease=3.0, grace=30.0)


@dataclass
class Story:
    """One contact, told second by second."""

    contact: Contact

    def shows(self, now: float, process: str, ended: bool = False, uid: str = "pod") -> None:
        pod = PodFacts(uid, "10.0.0.1", process, ended)
        self.contact.look(Seen(0, "demo-0", pod=pod), now)
        self.contact.judge(now)

    def answers(self, sent: float, incarnation: int = 1) -> None:
        self.contact.hear(ExchangeReply("OK", "", "uuid", "cluster", incarnation, 1, 0, 0), sent)
        self.contact.judge(sent)

    def fails(self, sent: float) -> None:
        self.contact.failed_seconds = sent
        self.contact.judge(sent)


def living() -> Story:
    story = Story(Contact(0, 0.0))
    story.shows(0.0, "a")
    story.answers(1.0)
    return story


def test_an_end_counts_when_a_later_request_failed() -> None:
    story = living()
    story.shows(2.0, "a", ended=True)
    assert not story.contact.ended
    assert story.contact.doubtful
    story.fails(2.01)
    assert story.contact.ended
    assert story.contact.known_dead
    assert story.contact.gone(2.01, TIMING)


def test_late_news_of_a_process_whose_successor_answers_is_no_end() -> None:
    story = living()
    story.shows(2.0, "b")
    story.answers(2.01, incarnation=2)
    story.shows(2.6, "b")
    assert not story.contact.ended
    assert story.contact.reachable(2.6, TIMING)


def test_it_stays_ended_until_it_answers_whatever_is_told_of_its_successor() -> None:
    story = living()
    story.shows(2.0, "a", ended=True)
    story.fails(2.1)
    story.shows(3.0, "b")
    assert story.contact.ended
    story.answers(3.5, incarnation=2)
    assert not story.contact.ended


def test_silence_alone_is_unreachable_but_not_known_dead() -> None:
    story = living()
    story.shows(6.0, "a")
    assert not story.contact.reachable(6.0, TIMING)
    assert story.contact.gone(6.0, TIMING)
    assert not story.contact.known_dead


def test_a_pod_that_is_gone_from_the_api_may_still_run() -> None:
    story = living()
    story.contact.look(Seen(0, "demo-0", pod=None), 2.0)
    story.fails(2.1)
    assert story.contact.ended
    assert not story.contact.known_dead


def test_its_place_is_kept_for_the_grace_period() -> None:
    story = living()
    story.contact.note_loss(6.0, TIMING)
    assert story.contact.in_grace(35.0, TIMING)
    assert not story.contact.in_grace(36.1, TIMING)
    story.answers(40.0)
    story.contact.note_loss(40.0, TIMING)
    assert not story.contact.in_grace(40.0, TIMING)
