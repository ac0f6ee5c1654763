"""A reader that follows by `since` has what a reader that reads everything has."""

from hypothesis import given
from hypothesis import strategies as st

from stele.core.delta import DeltaLog
from stele.core.table.groups import NO_GROUPS
from stele.core.table.replica_index import ReplicaIndex
from stele.core.table.table import EMPTY, Partition, trimmed

looks = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 5), st.integers(0, 3), max_size=4),
        st.sets(st.integers(0, 5), max_size=2),
        st.booleans(),
    ),
    max_size=12,
)


@given(looks)
def test_a_reader_that_misses_some_reports_has_all_that_changed(
    steps: list[tuple[dict[int, int], set[int], bool]],
) -> None:
    news, truth = DeltaLog[int, tuple[int, int]](7 << 32), dict[int, tuple[int, int]]()
    mine, number = dict[int, tuple[int, int]](), 0
    for changed, gone, reads in steps:
        truth.update({key: (key, value) for key, value in changed.items()})
        truth = {key: value for key, value in truth.items() if key not in gone}
        news.update({key: (key, value) for key, value in changed.items()}, gone)
        if reads:
            base, values, dropped = news.since(number)
            assert base == number
            mine.update({value[0]: value for value in values})
            mine = {key: value for key, value in mine.items() if key not in dropped}
            number = news.number
            assert mine == truth


def test_a_number_of_another_process_is_answered_with_everything() -> None:
    news = DeltaLog[str, int](2 << 32)
    news.update({"a": 1})
    assert news.since((1 << 32) + 1) == (0, [1], [])
    assert news.since((3 << 32) + 1) == (0, [1], [])
    assert news.since(news.number) == (news.number, [], [])


def test_what_is_as_before_is_no_news() -> None:
    news = DeltaLog[str, int]()
    news.update({"a": 1, "b": 1})
    before = news.number
    news.update({"a": 1, "b": 2})
    assert news.since(before) == (before, [2], [])


rows = st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=4).map(
    lambda slots: trimmed(None if slots.index(each) < at else each for at, each in enumerate(slots))
)


@given(st.lists(st.tuples(st.integers(0, 3), rows), max_size=15))
def test_holdings_that_follow_every_row_are_those_of_the_table(
    changes: list[tuple[int, tuple[int | None, ...]]],
) -> None:
    """Two of the four partitions are in groups."""
    table, groups = [EMPTY] * 4, NO_GROUPS.with_group(2, "a", 1, 1).with_group(3, "b", 1, 3)
    followed = ReplicaIndex(table, groups)
    for number, replicas in changes:
        after = Partition(table[number].version + 1, replicas)
        followed.set(number, table[number], after)
        table[number] = after
    counted = ReplicaIndex(table, groups)
    assert {member: followed.of(member) for member in range(5)} == {m: counted.of(m) for m in range(5)}
    assert followed.members == counted.members
    assert [+copies for copies in followed.copies] == [+copies for copies in counted.copies]
    for name in ("owned", "sole"):
        assert +getattr(followed, name) == +getattr(counted, name)
