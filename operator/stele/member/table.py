"""The published table as this member knows it, in memory; `to_file` is what is persisted."""

from collections.abc import Iterable

from stele.core.errors import Corrupt
from stele.core.table import EMPTY, Partition, Stamp, row_fault
from stele.wire.messages import MemberInfo, Row
from stele.wire.volume import TableFile


class Table:
    """Rows by partition. `epoch` is the highest that was seen; versions never fall."""

    def __init__(self, file: TableFile) -> None:
        self.epoch = file.epoch
        self.me = file.self_index
        self.replicas = file.replicas
        self.state = file.state
        self.member_list_version = file.member_list_version
        self.members: dict[int, MemberInfo] = {info.index: info for info in file.members}
        self.rows: list[Partition] = []
        self._stamp = Stamp(())
        self.resize(file.partitions)
        for row in file.rows:
            self.set(row.partition, Partition(row.version, row.replicas))

    def resize(self, partitions: int) -> None:
        """Set the number of partitions, once; Corrupt when it was another before."""
        if partitions == len(self.rows):
            return
        if self.rows:
            raise Corrupt(f"the table has {len(self.rows)} partitions here, {partitions} at the master")
        self.rows = [EMPTY] * partitions
        self._stamp = Stamp([0] * partitions)

    @property
    def stamp(self) -> int:
        return self._stamp.value

    def newer(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that this table does not have yet. Corrupt for one that cannot be."""
        return [row for row in rows if self._is_newer(row)]

    def _is_newer(self, row: Row) -> bool:
        if not 0 <= row.partition < len(self.rows):
            raise Corrupt(f"row of partition {row.partition}; the table has {len(self.rows)} partitions")
        known = self.rows[row.partition]
        fault = row_fault(row.replicas)
        if fault is not None:
            raise Corrupt(f"partition {row.partition} {fault}")
        if row.version == known.version and row.replicas != known.replicas:
            raise Corrupt(
                f"partition {row.partition}: {row.replicas} was published, {known.replicas} is known here, "
                f"both with version {row.version}"
            )
        return row.version > known.version

    def set(self, partition: int, row: Partition) -> None:
        self.rows[partition] = row
        self._stamp.set(partition, row.version)

    def to_rows(self) -> tuple[Row, ...]:
        return tuple(Row(p, row.version, row.replicas) for p, row in enumerate(self.rows) if row.version)

    def to_file(self, extra: Iterable[Row] = ()) -> TableFile:
        """What is persisted: this table, with `extra` rows as if they were known already."""
        rows = {row.partition: row for row in self.to_rows()}
        rows.update({row.partition: row for row in extra})
        return TableFile(
            epoch=self.epoch,
            self_index=self.me,
            partitions=len(self.rows),
            replicas=self.replicas,
            state=self.state,
            member_list_version=self.member_list_version,
            members=tuple(self.members.values()),
            rows=tuple(rows.values()),
        )
