"""The table that a member persists."""

import msgspec
import pytest

from stele.core.control.commands import ExchangeRequest, Row
from stele.core.formats import GROUPS, KEYSPACES
from stele.core.kv.keyspaces import DEFAULTS, Catalog, Settings
from stele.core.table.groups import PartitionGroup, PartitionGroups
from stele.core.table.table import Partition
from stele.errors import Corrupt
from stele.member.replication.table_cache import TableCache
from stele.wire.storage.volume import StoredRow, TableFile, decode_file, encode_file


def _table() -> TableCache:
    return TableCache(TableFile(epoch=1, self_index=0, rows=(StoredRow(1, (0,)), StoredRow(0, ()))))


def test_rows_that_are_about_to_take_effect_are_in_every_file() -> None:
    table = _table()
    expected = (StoredRow(2, (0, 1)), StoredRow(1, (1,)))
    assert table.to_file([Row(0, 2, (0, 1)), Row(1, 1, (1,))]).rows == expected
    assert table.to_file().rows == expected


def test_what_took_effect_and_changed_again_is_written_as_it_is() -> None:
    table = _table()
    table.to_file([Row(0, 2, (0, 1))])
    table.set(0, Partition(3, (1, 0)))
    assert table.to_file().rows == (StoredRow(3, (1, 0)), StoredRow(0, ()))


def test_a_catalog_is_used_once_it_is_on_the_volume() -> None:
    table = TableCache(TableFile(epoch=1, self_index=0, features=KEYSPACES))
    catalog = Catalog(3, {"sessions": Settings(ttl_seconds=60)})
    table.adopt(_request(catalog))
    assert table.keyspaces.settings_of(b"sessions") is DEFAULTS
    content = encode_file(table.to_file())
    assert decode_file(TableFile, content, "table").catalog == catalog
    table.saved()
    assert table.keyspaces.settings_of(b"sessions").ttl_seconds == 60
    assert TableCache(decode_file(TableFile, content, "table")).keyspaces.catalog == catalog
    assert table.knows(_request(Catalog(2))), "an older catalog changes nothing"
    table.adopt(_request(Catalog(2)))
    assert table.to_file().catalog == catalog


def test_an_impossible_catalog_is_refused() -> None:
    table = TableCache(TableFile(epoch=1, self_index=0, features=KEYSPACES))
    with pytest.raises(Corrupt, match="keyspace is 'A'"):
        table.adopt(_request(Catalog(1, {"A": Settings()})))


def _groups(partitions: int, *groups: PartitionGroup) -> ExchangeRequest:
    known = PartitionGroups(len(groups), groups)
    return ExchangeRequest(
        GROUPS, "c", 1, "u", self_index=0, partitions=partitions, groups=known, groups_version=known.version
    )


ONE, TWO = PartitionGroup("a", 2, 3, 2), PartitionGroup("b", 5, 1, 1)


def test_groups_are_used_once_they_are_on_the_volume_and_change_no_other_partition() -> None:
    table = _table()
    table.resize(_groups(5, ONE))
    assert (len(table.rows), table.main, table.groups.version) == (5, 2, 0)
    assert not table.knows(_groups(5, ONE))
    assert (table.routes.group(b"a"), table.routes.groups) == (range(2), [range(2)])
    content = encode_file(replace_features(table))
    table.saved()
    assert table.groups.groups == (ONE,)
    assert (table.routes.group(b"a"), table.routes.groups) == (range(2, 5), [range(2), range(2, 5)])
    read = TableCache(decode_file(TableFile, content, "table"))
    assert (len(read.rows), read.main, read.groups) == (5, 2, table.groups)
    assert [read.replicas_of(partition) for partition in (1, 2, 4)] == [0, 2, 2]
    assert [read.routes.group(keyspace) for keyspace in (b"a", b"b")] == [range(2, 5), range(2)]
    read.resize(_groups(6, ONE, TWO))
    read.resize(_groups(5, ONE))
    assert len(read.rows) == 6, "an older table takes nothing away"


def test_requests_are_not_routed_before_the_first_table_is_on_the_volume() -> None:
    """Else a request of a keyspace with a group would wait for a partition outside of it."""
    table = TableCache(TableFile())
    table.resize(_groups(5, ONE))
    assert (table.routes.group(b"a"), table.routes.groups) == (range(0), [])
    table.saved()
    assert (table.routes.group(b"a"), table.routes.group(b"x")) == (range(2, 5), range(2))


def replace_features(table: TableCache) -> TableFile:
    return msgspec.structs.replace(table.to_file(), features=GROUPS)


def test_a_member_without_the_groups_of_a_request_takes_nothing_of_it() -> None:
    table, request = TableCache(TableFile()), _groups(5, ONE)
    assert table.lacks_groups(msgspec.structs.replace(request, groups=None))
    assert not table.lacks_groups(request)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ExchangeRequest(GROUPS, "c", 1, "u", partitions=3), "2 partitions here, 3 at the master"),
        (ExchangeRequest(GROUPS, "c", 1, "u", partitions=1), "2 partitions here, 1 at the master"),
        (_groups(5, PartitionGroup("a", 1, 4, 2)), "2 partitions here, 5 at the master"),
        (_groups(6, ONE), "the groups end at 5; the table has 6 partitions"),
        (_groups(5, PartitionGroup("a", 2, 3, 8)), "has 8 replicas; expected 1 to 7"),
        (_groups(6, ONE, PartitionGroup("a", 5, 1, 1)), "two groups belong to one keyspace"),
    ],
)
def test_impossible_groups_are_refused_and_change_nothing(request_: ExchangeRequest, reason: str) -> None:
    table = _table()
    with pytest.raises(Corrupt, match=reason):
        table.resize(request_)
    assert (len(table.rows), table.main) == (2, 2)
    assert not table.to_file().groups.groups


def test_a_partition_never_goes_to_another_keyspace() -> None:
    table = _table()
    table.resize(_groups(5, ONE))
    with pytest.raises(Corrupt, match="a partition belongs to another keyspace here"):
        table.resize(_groups(6, PartitionGroup("x", 2, 3, 2), TWO))


def _request(catalog: Catalog) -> ExchangeRequest:
    return ExchangeRequest(KEYSPACES, "c", 1, "u", self_index=0, catalog=catalog)
