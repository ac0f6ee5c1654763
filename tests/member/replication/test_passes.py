"""What is asked of all tablets again and again."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.control.commands import ExchangeRequest, Row
from stele.core.kv.two_phase import Locks
from stele.core.table.table import Partition
from stele.core.tablet.follower import Tablet
from stele.core.tablet.lifecycle import TabletState
from stele.core.tablet.log import Log
from stele.member.replication import passes
from stele.member.replication.replica import Replica
from stele.member.replication.table_cache import TableCache
from stele.wire.storage.volume import Consensus, CopyRecord, Quarantined, StoredRow, Superblock, TableFile

ME = 0
BLOCK = Superblock(state=TabletState.READY, generation=1, highest=1)


def replica(number: int, **fields: Any) -> Replica:
    made = Replica(Tablet(number, ME, Log(), 0), BLOCK, Consensus())
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def news(tablets: dict[int, Replica], *, positions: bool) -> tuple[list[Replica], list[int]]:
    found = passes.survey(tablets, positions=positions)
    return found.changed, found.gone


def test_a_tablet_is_news_once_until_it_changes() -> None:
    tablets = {number: replica(number) for number in range(3)}
    assert news(tablets, positions=True) == (list(tablets.values()), [])
    assert news(tablets, positions=True) == ([], [])
    tablets[1].block = Superblock(state=TabletState.DELETED, generation=1, highest=1)
    tablets[2].tablet.promised += 1
    assert news(tablets, positions=False) == ([tablets[1], tablets[2]], [])
    assert news(tablets, positions=True) == ([], [])


def test_a_position_is_news_only_when_positions_are_asked_for() -> None:
    tablets = {0: replica(0)}
    news(tablets, positions=True)
    tablets[0].tablet.log.append(1, 1, 10)
    assert news(tablets, positions=False) == ([], [])
    assert news(tablets, positions=True) == ([tablets[0]], [])


def test_a_tablet_that_goes_offline_is_gone_once_and_news_when_it_is_back() -> None:
    tablets = {0: replica(0), 1: replica(1, block=None)}
    assert news(tablets, positions=True) == ([tablets[0]], [])
    tablets[0].broken = "damaged"
    assert news(tablets, positions=False) == ([], [0])
    assert news(tablets, positions=True) == ([], [])
    tablets[0].broken = ""
    assert news(tablets, positions=False) == ([tablets[0]], [])


def test_logs_that_grew_are_found_with_what_they_had() -> None:
    tablets = {0: replica(0), 1: replica(1)}
    assert passes.grown(tablets) == []
    tablets[1].tablet.log.append(1, 1, 10)
    assert passes.grown(tablets) == [(tablets[1], 0)]
    tablets[1].tablet.log.append(1, 2, 5)
    assert passes.grown(tablets) == [(tablets[1], 10)]
    assert passes.grown(tablets) == []


def test_totals_count_entries_of_users_and_all_bytes() -> None:
    tablets = {
        0: replica(0, keyspaces={b"default": (3, 30), b"": (2, 20)}),
        1: replica(1, keyspaces={b"default": (4, 40)}),
        2: replica(2, keyspaces={b"default": (9, 90)}, broken="damaged"),
    }
    for each in tablets.values():
        each.tablet.row = Partition(1, (ME, 1))
    assert passes.totals(tablets, {0}) == (1, 7, 90)


@pytest.mark.plain
def test_only_owned_partitions_that_are_served_are_served() -> None:
    serving, frozen = (cast("Any", SimpleNamespace(serving=each, learner=None)) for each in (True, False))
    tablets = {0: replica(0), 1: replica(1), 2: replica(2)}
    tablets[0].owner, tablets[1].owner = serving, frozen
    assert passes.serving(tablets) == [tablets[0]]
    assert passes.survey(tablets, positions=False).serving == [0]
    assert passes.unserved({0, 1, 7}, tablets) == [1, 7]


def test_partitions_without_a_tablet_are_not_served() -> None:
    assert passes.unserved({7, 3}, {0: replica(0)}) == [3, 7]


@pytest.mark.plain
def test_tablets_with_entries_are_those_of_users_that_are_served() -> None:
    serving, frozen = (cast("Any", SimpleNamespace(serving=each)) for each in (True, False))
    contents = ({b"default": (1, 10)}, {b"default": (0, 0), b"": (2, 20)}, {}, {b"default": (1, 10)})
    tablets = {number: replica(number, keyspaces=each) for number, each in enumerate(contents)}
    for number, each in tablets.items():
        each.owner = frozen if number == 3 else serving
    assert passes.with_entries(tablets) == [tablets[0]]


def test_tablets_are_found_by_locks_entries_and_quarantine() -> None:
    kept = Quarantined(1, 0.0)
    tablets = {
        0: replica(0, locks=Locks()),
        1: replica(1, keyspaces={b"a": (1, 10), b"b": (0, 0)}),
        2: replica(2, block=msgspec.structs.replace(BLOCK, quarantined=(kept,))),
        3: replica(3, block=None),
    }
    assert passes.locked(tablets) == [tablets[0]]
    assert (passes.holding(tablets, b"a"), passes.holding(tablets, b"b")) == ([tablets[1]], [])
    assert passes.quarantined(tablets) == [tablets[2]]


@pytest.mark.plain
def test_a_survey_finds_tablets_that_agreed_or_move() -> None:
    moving, still = (cast("Any", SimpleNamespace(serving=True, learner=each)) for each in (object(), None))
    agreed = Consensus(accepted=Row(1, 2, (ME, 1)))
    copying = Consensus(copy=CopyRecord("id", 1, 1, 1, kept=False))
    tablets = {
        0: replica(0, meta=agreed),
        1: replica(1, meta=copying, block=None),
        2: replica(2, owner=moving),
        3: replica(3, owner=still),
    }
    found = passes.survey(tablets, positions=False)
    assert (found.agreed, found.copying, found.learning) == ([tablets[0]], [tablets[1]], [tablets[2]])
    assert (found.serving, passes.learning(tablets)) == ([2, 3], [tablets[2]])


ROWS = st.lists(st.tuples(st.integers(0, 7), st.permutations([0, 1, 2])), max_size=20)


@given(ROWS, st.integers(0, 2))
def test_what_a_member_owns_and_stores_follows_its_rows(
    changes: list[tuple[int, list[int]]], me: int
) -> None:
    table = TableCache(TableFile(epoch=1, self_index=ME, rows=(StoredRow(1, (0, 1)),) * 8))
    for version, (partition, members) in enumerate(changes, start=2):
        table.set(partition, Partition(version, tuple(members[:2])))
    table.adopt(ExchangeRequest(format=1, cluster="c", epoch=1, recipient="u", self_index=me, partitions=8))
    assert table.owned == {number for number, row in enumerate(table.rows) if row.owner == me}
    assert table.to_file().rows == tuple(StoredRow(row.version, row.replicas) for row in table.rows)
