"""How the benchmark of the master reads what it measures, and that its members are members."""

from e2e.bench.light_members import LightMember
from e2e.bench.master import quantile
from stele.core.table import stamp_of
from stele.wire import messages as wire


def request(epoch: int = 1, known: int = 0, **more: object) -> wire.ExchangeRequest:
    return wire.ExchangeRequest(
        wire.EXCHANGE_FORMAT, "c", epoch, "light-1", self_index=0, partitions=2, known=known, **more
    )


def test_the_quantile_is_of_what_came_between_the_readings() -> None:
    before = {0.01: 90, 0.02: 90, 0.05: 100}
    after = {0.01: 93, 0.02: 99, 0.05: 110}
    assert quantile(before, after, 0.3) == 0.01
    assert quantile(before, after, 0.9) == 0.02
    assert quantile(before, after, 0.99) == 0.05
    assert quantile(after, after, 0.5) is None


def test_a_light_member_adopts_rows_and_tells_what_changed() -> None:
    member = LightMember("light-1")
    first = member.serve(request(rows=(wire.Row(0, 1, (0, 1)), wire.Row(1, 1, (1, 0)))))
    assert first.stamp == stamp_of([1, 1])
    assert [(tablet.partition, tablet.state) for tablet in first.tablets] == [(0, "READY"), (1, "READY")]
    again = member.serve(request(known=first.number))
    assert (again.base, again.tablets) == (first.number, ())


def test_a_light_learner_is_in_sync_one_exchange_later() -> None:
    member = LightMember("light-1")
    asked = member.serve(request(commands=(wire.AddLearner("m", 0, 1, 3),)))
    assert [(each.id, each.state) for each in asked.learners] == [("m", "STREAMING")]
    assert [each.state for each in member.serve(request()).learners] == ["IN_SYNC"]


def test_a_light_member_refuses_a_master_that_was_replaced() -> None:
    member = LightMember("light-1")
    member.serve(request(epoch=4))
    assert member.serve(request(epoch=3)).code == "STALE_EPOCH"
