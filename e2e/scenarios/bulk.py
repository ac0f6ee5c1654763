"""Rows of a Parquet file into a cluster of three members, at two replicas each, and back: equal.

python -m e2e.scenarios.bulk --rows 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import cache, images, kind
from e2e.demo import stage
from e2e.demo.settings import SMOKE_NAMESPACE, Settings

CLUSTER = "bulk"
NODE_PORT = 30381
KEYSPACE = "rows"
BATCH = 50_000
COMMAND_SECONDS_MAX = 1800.0


@dataclass(frozen=True)
class Outcome:
    """What the commands told, and how rows that came back differ: `missing` are not there or differ."""

    loaded: dict[str, Any]
    again: dict[str, Any]
    dumped: dict[str, Any]
    missing: int
    added: int


def make_file(path: Path, rows: int, value_bytes: int = 100, seed: int = 7) -> None:
    """Keys in no order, values that cannot be compressed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(seed)
    numbers = list(range(rows))
    chance.shuffle(numbers)
    schema = pa.schema([("id", pa.string()), ("body", pa.binary())])
    with pq.ParquetWriter(path, schema) as writer:
        for begin in range(0, rows, BATCH):
            mine = numbers[begin : begin + BATCH]
            bodies = [chance.randbytes(value_bytes) for _ in mine]
            writer.write_table(pa.table([[f"row-{n:09d}" for n in mine], bodies], schema=schema))


def compare(given: Path, found: Path) -> tuple[int, int]:
    """(rows of `given` that are not in `found` as they are, rows of `found` beyond)."""
    import pyarrow.parquet as pq

    wanted = pq.read_table(given)
    rows = dict(zip(wanted["id"].cast("binary").to_pylist(), wanted["body"].to_pylist(), strict=True))
    came = pq.read_table(found)
    matched = 0
    for key, value in zip(came["key"].to_pylist(), came["value"].to_pylist(), strict=True):
        matched += rows.get(key) == value
    return len(rows) - matched, came.num_rows - matched


def settings() -> Settings:
    """A cluster of its own beside whatever a demo left."""
    return Settings(namespace=SMOKE_NAMESPACE, cluster=CLUSTER, node_port=NODE_PORT, live=False)


def run(rows: int, folder: Path, *, keep: bool = False) -> Outcome:
    """Raise CalledProcessError, with what the command said on standard error, when one of them fails."""
    wanted = settings()
    stage.Stage(wanted, folder).prepare()
    image = images.build(("sql",))["sql"]
    kind.load(image)
    given, found = folder / "given.parquet", folder / "found.parquet"
    make_file(given, rows)
    columns = ["--key-column", "id", "--value-column", "body"]
    try:
        loaded = _stele("load", str(given), *columns, "--image", image)
        again = _stele("load", str(given), *columns, "--load", loaded["load"])
        dumped = _stele("dump", str(found))
        return Outcome(loaded, again, dumped, *compare(given, found))
    finally:
        if not keep:
            stage.clear(wanted.namespace, wanted.cluster, cache.root() / "logs" / "bulk.log")


def _stele(*words: str) -> dict[str, Any]:
    where = ["--cluster", CLUSTER, "--keyspace", KEYSPACE, "-n", SMOKE_NAMESPACE]
    command = [sys.executable, "-m", "stele.cli", *words, *where, "-o", "json"]
    env = {**os.environ, **kind.env()}
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=env, timeout=COMMAND_SECONDS_MAX
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def main() -> int:
    """Print the outcome; 1 when the rows are not equal."""
    parser = argparse.ArgumentParser(prog="python -m e2e.scenarios.bulk", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keep", action="store_true", help="leave the TabletCluster there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stele-bulk-") as folder:
        outcome = run(options.rows, Path(folder), keep=options.keep)
    print(outcome)
    return int(bool(outcome.missing or outcome.added))


if __name__ == "__main__":
    sys.exit(main())
