"""The table that a member persists."""

from stele.core.control.commands import Row
from stele.core.table.table import Partition
from stele.member.replication.table_cache import TableCache
from stele.wire.storage.volume import StoredRow, TableFile


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
