"""Requests that wait for an answer, and for how long."""

from stele.core.tablet.follower import Tablet
from stele.core.tablet.leases import LeaseHolder
from stele.core.tablet.log import Log
from stele.errors import Uncertain
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.replica import Replica
from stele.member.replication.request import Request, RequestKind
from stele.wire.storage.volume import Consensus

ME = 0


class Client:
    """Sends `next_request` as soon as one has failed, as a pipeline does."""

    def __init__(self, replies: DelayedReplies) -> None:
        self.replies = replies
        self.next_request: tuple[Replica, Request] | None = None
        self.errors: list[BaseException] = []

    def done(self) -> bool:
        return False

    def set_exception(self, error: BaseException) -> None:
        self.errors.append(error)
        if self.next_request is not None:
            following, self.next_request = self.next_request, None
            self.replies.wait(*following)


def replica(number: int) -> Replica:
    return Replica(Tablet(number, ME, Log(), 0), None, Consensus())


def write(client: Client, partition: int, deadline: float) -> Request:
    made = Request(RequestKind.EXECUTE, partition, b"", client)
    made.commands, made.deadline, made.index = [[b"SET", b"k", b"v"]], deadline, 1
    made.wrote, made.writes, made.bytes = True, 1, 10
    return made


def test_a_request_that_follows_at_once_one_that_waited_too_long_waits_in_turn() -> None:
    replies = DelayedReplies(LeaseHolder(), lambda: 0.0)
    client, tablets = Client(replies), [replica(0), replica(1)]
    replies.wait(tablets[0], write(client, 0, deadline=10.0))
    client.next_request = tablets[1], write(client, 1, deadline=20.0)
    replies.expire(9.0)
    assert client.errors == []
    replies.expire(10.0)
    assert (len(client.errors), replies.pending_bytes) == (1, 10)
    replies.expire(19.0)
    assert len(client.errors) == 1
    replies.expire(20.0)
    assert [type(each) for each in client.errors] == [Uncertain, Uncertain]
    assert replies.pending_bytes == 0
