"""The Spark data source `stele`: bulk loads by `df.write`, exports by `spark.read` (docs/operating/bulk.md).

    spark.dataSource.register(SteleDataSource)
    df.write.format("stele").option("address", "demo-members.stele").mode("append").save()
    spark.read.format("stele").option("address", "demo-members.stele").option("keyspace", "users").load()

Nothing is shuffled: every task sorts its rows and sends them to the members that hold their tablets. When all
tasks are done, the driver lets each tablet apply its rows.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType, TimestampType

from stele.client.bulk import Loader, Piece, Row, check_keyspace, export, export_groups
from stele.client.members import Members, parse_addresses
from stele.errors import BadInput
from stele.wire.copy.bulk import Duplicates, check_load_id

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "key binary, value binary, expire_at_ms bigint"
GROUPS_MAX = 1024
_BOTH = {"address", "keyspace", "path", "tlsfolder"}
_WRITE = _BOTH | {"load", "duplicates", "keycolumn", "valuecolumn", "expirecolumn"}
_READ = _BOTH | {"tasksperowner"}


@dataclass(frozen=True)
class Target:
    """The members and the keyspace to write to or read from."""

    members: Members
    keyspace: str


class SteleDataSource(DataSource):
    """The data source; see the module. The driver checks every option before tasks start."""

    @classmethod
    def name(cls) -> str:
        return "stele"

    def schema(self) -> str:
        """Return the schema of reads. `expire_at_ms` is in Unix milliseconds, 0 for never."""
        return SCHEMA

    def reader(self, schema: StructType) -> "SteleReader":
        options = _options(self.options, _READ)
        groups = _number(options, "tasksperowner", 2)
        if [field.name for field in schema.fields] != ["key", "value", "expire_at_ms"]:
            raise BadInput(f"the schema is '{schema.simpleString()}'; omit it, format stele has '{SCHEMA}'")
        return SteleReader(_target(options), groups)

    def writer(self, schema: StructType, overwrite: bool) -> "SteleWriter":
        if overwrite:
            raise BadInput(
                'mode overwrite is not supported; format stele adds and replaces rows: use .mode("append")'
            )
        options = _options(self.options, _WRITE)
        duplicates = options.get("duplicates", "error")
        if duplicates not in ("error", "last"):
            raise BadInput(f"option duplicates is '{duplicates}'; expected error or last")
        load = check_load_id(options.get("load") or f"load-{uuid.uuid4().hex[:12]}")
        return SteleWriter(_target(options), load, duplicates, find_columns(schema, options))


def _options(raw_options: Mapping[str, str], known: set[str]) -> dict[str, str]:
    options = {name.lower(): value for name, value in raw_options.items()}
    for name in sorted(options.keys() - known):
        raise BadInput(f"option {name} is unknown to format stele; expected {', '.join(sorted(known))}")
    return options


def _target(options: Mapping[str, str]) -> Target:
    address = options.get("address") or options.get("path", "")
    if not address:
        raise BadInput('option address is missing; set .option("address", "HOST[:PORT]") to that of a member')
    members = Members(parse_addresses(address), options.get("tlsfolder", ""))
    return Target(members, check_keyspace(options.get("keyspace", "default")))


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= GROUPS_MAX:
        raise BadInput(f"option {name} is '{text}'; expected a number from 1 to {GROUPS_MAX}")
    return int(text)


# -- writing


@dataclass(frozen=True)
class Columns:
    """Indexes of the columns to write; `expire` is -1 without one."""

    key: int
    value: int
    expire: int


def find_columns(schema: StructType, options: Mapping[str, str]) -> Columns:
    """Find the columns. Raises BadInput with the existing columns."""
    bytes_like = (StringType, BinaryType)
    key = _column(schema, options.get("keycolumn", "key"), "keyColumn", bytes_like)
    value = _column(schema, options.get("valuecolumn", "value"), "valueColumn", bytes_like)
    name = options.get("expirecolumn", "")
    for usual in ("expire_at", "expire_at_ms"):
        name = name or (usual if usual in schema.fieldNames() else "")
    expire = _column(schema, name, "expireColumn", (TimestampType, LongType)) if name else -1
    return Columns(key, value, expire)


def _column(schema: StructType, name: str, option: str, kinds: tuple[type[DataType], ...]) -> int:
    names = schema.fieldNames()
    if name not in names:
        raise BadInput(
            f"column '{name}' does not exist; the columns are {', '.join(names)}: set {option} to one"
        )
    kind = schema.fields[names.index(name)].dataType
    if not isinstance(kind, kinds):
        expected_kinds = " or ".join(each().simpleString() for each in kinds)
        raise BadInput(f"column '{name}' is {kind.simpleString()}; expected {expected_kinds}: cast it first")
    index: int = names.index(name)
    return index


@dataclass
class SteleMessage(WriterCommitMessage):
    """The pieces that one task sent."""

    pieces: list[Piece]


class SteleWriter(DataSourceArrowWriter):
    """One load. The commit applies it; a failed load can be repeated with its id."""

    def __init__(self, target: Target, load: str, duplicates: str, columns: Columns) -> None:
        self._target, self._load, self._columns = target, load, columns
        self._duplicates: Duplicates = "last" if duplicates == "last" else "error"

    def _loader(self) -> Loader:
        return Loader(self._target.members, self._load, self._target.keyspace, self._duplicates)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> SteleMessage:
        """Send rows, in a task. Names begin with the task's number: of equal keys the last task's wins."""
        context = TaskContext.get()
        assert context is not None
        name = f"{context.partitionId():06d}-{context.taskAttemptId()}-{uuid.uuid4().hex[:8]}"
        rows = (row for batch in iterator for row in rows_of(batch, self._columns))
        return SteleMessage(self._loader().send(name, rows))

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """Apply the load, on the driver, when all tasks are done."""
        pieces = [
            piece for message in messages if isinstance(message, SteleMessage) for piece in message.pieces
        ]
        self._loader().finish(pieces)

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        """End the load, on the driver, when a task failed: nothing was loaded, and the pieces are deleted."""
        self._loader().end()


def rows_of(batch: "pa.RecordBatch", columns: Columns) -> Iterator[Row]:
    """Iterate the rows of a batch. Raises BadInput for a key or value that is null."""
    import pyarrow as pa

    keys = batch.column(columns.key).cast(pa.binary())
    values = batch.column(columns.value).cast(pa.binary())
    for name, column in (("key", keys), ("value", values)):
        if column.null_count:
            raise BadInput(f"{column.null_count} rows have no {name} (null): drop or fill them")
    return zip(keys.to_pylist(), values.to_pylist(), _expiries(batch, columns), strict=True)


def _expiries(batch: "pa.RecordBatch", columns: Columns) -> list[int]:
    import pyarrow as pa

    if columns.expire < 0:
        return [0] * batch.num_rows
    column = batch.column(columns.expire)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    return [0 if number is None else number for number in column.cast(pa.int64()).to_pylist()]


# -- reading


class Group(InputPartition):
    """Partitions that one task reads."""

    def __init__(self, partitions: tuple[int, ...]) -> None:
        super().__init__(partitions)


class SteleReader(DataSourceReader):
    """Reads; each task creates a checkpoint at the owner of its partitions and reads it."""

    def __init__(self, target: Target, groups: int) -> None:
        self._target, self._groups = target, groups

    def partitions(self) -> list[InputPartition]:
        return [
            Group(mine) for mine in export_groups(self._target.members, self._target.keyspace, self._groups)
        ]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        names = ["key", "value", "expire_at_ms"]
        kinds = [pa.binary(), pa.binary(), pa.int64()]
        for columns in export(self._target.members, partition.value, self._target.keyspace):
            arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=names)
