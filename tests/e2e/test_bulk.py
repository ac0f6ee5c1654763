"""`kubectl stele load` and `dump` on a real cluster: every row comes to its replicas, once, and back."""

from pathlib import Path

import pytest

from e2e.scenarios import bulk

ROWS = 20_000


def test_what_came_back_is_compared_row_by_row(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    given, found = tmp_path / "given.parquet", tmp_path / "found.parquet"
    bulk.make_file(given, 5)
    rows = pq.read_table(given)
    keys, values = rows["id"].cast("binary").to_pylist(), rows["body"].to_pylist()
    pq.write_table(pa.table({"key": keys, "value": values}), found)
    assert bulk.compare(given, found) == (0, 0)
    pq.write_table(pa.table({"key": [*keys[:4], b"more"], "value": [b"other", *values[1:]]}), found)
    assert bulk.compare(given, found) == (2, 2)


@pytest.mark.cluster
def test_rows_of_a_parquet_file_come_to_all_replicas_and_back(tmp_path: Path) -> None:
    outcome = bulk.run(ROWS, tmp_path)
    assert (outcome.missing, outcome.added) == (0, 0)
    assert outcome.loaded["rows"] == outcome.dumped["rows"] == ROWS
    assert outcome.loaded["tablets"] == outcome.again["tablets"] == outcome.again["skipped"] > 0
