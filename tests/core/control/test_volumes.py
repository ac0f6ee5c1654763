"""The table of a deleted cluster, put together from its volumes; groups as in Hazelcast's partial restart."""

import pytest

from stele.core.control.commands import ExchangeReply, MemberInfo, Row
from stele.core.control.volumes import (
    RecoveredTable,
    Recovery,
    RecoveryIncomplete,
    RecoveryPolicy,
    Volume,
    chosen_group,
    groups_of,
    recovered_table,
    volume_of,
)
from stele.core.table.table import Partition, stamp_of

UID = "6f0e0d0c-0000-4000-8000-000000000000"
MERGE, RECENT, COMPLETE = RecoveryPolicy.MERGE, RecoveryPolicy.MOST_RECENT, RecoveryPolicy.MOST_COMPLETE

Rows = tuple[tuple[int, tuple[int | None, ...]], ...]


def infos(*indexes: int, lite: int = -1) -> tuple[MemberInfo, ...]:
    return tuple(MemberInfo(n, f"demo-{n}", f"uuid-{n}", "10.0.0.1", n == lite) for n in indexes)


def volume(
    index: int,
    rows: Rows,
    members: tuple[MemberInfo, ...] = infos(0, 1, 2),
    version: int = 1,
    accepted: tuple[Row, ...] = (),
) -> Volume:
    reply = ExchangeReply(
        "OK",
        "",
        f"uuid-{index}",
        UID,
        1,
        epoch=1,
        stamp=stamp_of(version for version, _ in rows),
        member_list_version=version,
        rows=tuple(Row(n, version, replicas) for n, (version, replicas) in enumerate(rows)),
        members=members,
        accepted=accepted,
    )
    made = volume_of(f"demo-{index}", reply)
    assert made is not None
    return made


def recovered(
    *volumes: Volume, policy: RecoveryPolicy = MERGE, loss: tuple[str, ...] = (), partitions: int = 2
) -> RecoveredTable:
    by_index = {int(each.name.removeprefix("demo-")): each for each in volumes}
    return recovered_table(by_index, {}, partitions, Recovery("demo", UID, policy, frozenset(loss)))


def refused(*volumes: Volume, policy: RecoveryPolicy = MERGE, loss: tuple[str, ...] = ()) -> str:
    with pytest.raises(RecoveryIncomplete) as caught:
        recovered(*volumes, policy=policy, loss=loss)
    return caught.value.text


OLD: Rows = ((1, (0, 1)), (1, (1, 2)))
NEW: Rows = ((3, (0, 2)), (1, (1, 2)))
OTHER: Rows = ((1, (0, 1)), (2, (2, 1)))


def test_of_each_partition_the_highest_version_wins() -> None:
    made = recovered(volume(0, NEW), volume(1, OLD), volume(2, OTHER))
    assert made.rows == {0: Partition(3, (0, 2)), 1: Partition(2, (2, 1))}
    assert made.summary == (
        "Merge of demo-0 (version sum 4), demo-1 (version sum 2), demo-2 (version sum 3); "
        "the tables differ in partition 0, 1"
    )


def test_contradicting_rows_of_one_version_are_refused() -> None:
    other: Rows = ((1, (0, 2)), (1, (1, 2)))
    text = refused(volume(0, OLD), volume(1, other), volume(2, OLD))
    assert text.startswith("demo-1: partition 0 version 1 is (0, 1) in one table and (0, 2) in another")
    assert text.endswith("or choose one table with another policy")


@pytest.mark.parametrize("policy", [RECENT, COMPLETE])
def test_of_tables_that_contradict_each_other_in_rows_of_one_version_a_policy_takes_the_larger_group(
    policy: RecoveryPolicy,
) -> None:
    other: Rows = ((1, (0, 2)), (1, (1, 2)))
    text = refused(volume(0, OLD), volume(1, other), volume(2, OLD), policy=policy)
    assert "takes the table of demo-0 (version sum 2), demo-2 (version sum 2) and leaves out demo-1" in text
    made = recovered(volume(0, OLD), volume(2, OLD), policy=policy, loss=("demo-1",))
    assert made.rows == {0: Partition(1, (0, 1)), 1: Partition(1, (1, 2))}


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        # The greatest sum of versions; the largest group.
        (RECENT, ["demo-3"]),
        (COMPLETE, ["demo-0", "demo-1"]),
    ],
)
def test_groups_of_equal_tables(policy: RecoveryPolicy, chosen: list[str]) -> None:
    groups = groups_of([volume(0, OLD), volume(1, OLD), volume(2, OTHER), volume(3, NEW)])
    assert [len(group) for group in groups] == [2, 1, 1]
    assert [each.name for each in chosen_group(groups, policy)] == chosen


def test_of_groups_of_one_size_the_most_recent_is_taken_and_of_equal_sums_the_largest() -> None:
    groups = groups_of([volume(0, OLD), volume(1, NEW)])
    assert chosen_group(groups, COMPLETE)[0].name == "demo-1"
    same_sum: Rows = ((1, (0, 1)), (3, (1, 2)))
    groups = groups_of([volume(0, NEW), volume(1, same_sum), volume(2, same_sum)])
    assert [each.name for each in chosen_group(groups, RECENT)] == ["demo-1", "demo-2"]


def test_a_policy_names_the_volumes_that_it_leaves_out() -> None:
    assert refused(volume(0, NEW), volume(1, OLD), volume(2, OLD), policy=RECENT) == (
        "MostRecent takes the table of demo-0 (version sum 4) and leaves out demo-1 (version sum 2), "
        "demo-2 (version sum 2); to go on without what only these hold: kubectl stele recover demo "
        f"--from-uid {UID} --accept-loss demo-1 --accept-loss demo-2"
    )
    made = recovered(volume(0, NEW), policy=RECENT, loss=("demo-1", "demo-2"))
    assert made.rows == {0: Partition(3, (0, 2)), 1: Partition(1, (1, 2))}
    assert made.members.keys() == {0, 1, 2}, "rows name those that are lost"


def test_a_member_of_the_newest_list_is_missed_though_no_row_names_it() -> None:
    text = refused(volume(0, ((1, (0,)), (1, (0,)))), volume(1, OLD[:0], infos(0, 1)))
    assert "demo-2 (no claim)" in text
    assert f"kubectl stele recover demo --from-uid {UID} --accept-loss demo-2" in text


def test_a_member_that_only_an_accepted_row_names_is_missed() -> None:
    rows: Rows = ((1, (0, 1)), (1, (1, 0)))
    listed = infos(0, 1)
    known = (volume(0, rows, listed), volume(1, rows, listed, accepted=(Row(0, 2, (1, 3)),)))
    assert refused(*known) == "rows name member 3, which no volume's member list has: find the volumes"
    older = volume(2, rows, infos(0, 1, 2, 3), version=1)
    newer = (volume(0, rows, listed, version=2), volume(1, rows, listed, 2, (Row(0, 2, (1, 3)),)))
    assert "demo-3 (no claim)" in refused(*newer, older)


def test_an_accepted_row_that_was_overtaken_counts_no_more() -> None:
    rows: Rows = ((3, (0, 1)), (1, (1, 0)))
    late = volume(1, ((1, (0, 1)), (1, (1, 0))), infos(0, 1), accepted=(Row(0, 2, (1, 3)),))
    assert recovered(volume(0, rows, infos(0, 1)), late).members.keys() == {0, 1}


def test_lite_members_and_those_that_left_do_not_count() -> None:
    rows: Rows = ((4, (0, 1)), (4, (1, 0)))
    now, before = infos(0, 1, 2, lite=2), infos(0, 1, 3)
    left = volume(3, OLD, before, version=1)
    made = recovered(volume(0, rows, now, version=2), volume(1, rows, now, version=2), left)
    assert made.members.keys() == {0, 1}


def test_a_row_that_only_a_missing_volume_has_is_not_guessed() -> None:
    assert refused(volume(0, OLD[:1]), volume(1, OLD[:1])).startswith(
        "the table of demo-0 has 1 partitions, but spec.partitions is 2"
    )


def test_an_interrupted_attempt_goes_on_from_what_it_stored() -> None:
    stored = {0: Partition(1, (0, 1))}
    volumes = {0: volume(0, OLD), 1: volume(1, OLD), 2: volume(2, OLD)}
    made = recovered_table(volumes, stored, 2, Recovery("demo", UID))
    assert made.rows == {0: Partition(1, (0, 1)), 1: Partition(1, (1, 2))}


def test_a_table_that_is_cut_short_is_none() -> None:
    whole = volume(0, OLD).report
    cut = ExchangeReply("OK", "", "u", UID, 1, 1, whole.stamp, 1, rows=whole.rows[:1], members=infos(0))
    assert volume_of("demo-0", cut) is None
