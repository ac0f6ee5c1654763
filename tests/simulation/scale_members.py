"""Light members of large clusters: as those of the benchmark of the master, but they share what is equal.

A thousand members with a table of 65,536 rows each would need more memory than machines have.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any

from msgspec.structs import replace

from e2e.bench.light_members import LightMember
from stele.core.control.commands import ExchangeReply, ExchangeRequest, Row
from stele.core.table.digests import row_digests
from stele.core.table.table import Stamp


class SharedTable:
    """A whole table as it was published; `of` has each member's rows."""

    def __init__(self, rows: tuple[Row, ...]) -> None:
        assert [row.partition for row in rows] == list(range(len(rows)))
        self.rows, self.of = rows, dict[int, list[Row]]()
        for row in rows:
            for member in row.replicas:
                if member is not None:
                    self.of.setdefault(member, []).append(row)


class SharedRows(MutableMapping[int, Row]):
    """Rows of one member: those of a table that many share, and what it was told since."""

    def __init__(self, table: SharedTable) -> None:
        self._rows, self._changed = table.rows, dict[int, Row]()

    def __getitem__(self, number: int) -> Row:
        found = self._changed.get(number)
        if found is None and number >= len(self._rows):
            raise KeyError(number)
        return self._rows[number] if found is None else found

    def __setitem__(self, number: int, row: Row) -> None:
        self._changed[number] = row

    def __delitem__(self, number: int) -> None:
        raise NotImplementedError("rows are never forgotten")

    def __iter__(self) -> Iterator[int]:
        yield from range(len(self._rows))
        yield from (number for number in self._changed if number >= len(self._rows))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Shared:
    """What light members of one cluster share: tables, and digests by the stamp of the rows."""

    def __init__(self) -> None:
        self._table: SharedTable | None = None
        self._digests: dict[int, bytes] = {}

    def table(self, rows: tuple[Row, ...]) -> SharedTable:
        """Return the table of these rows, the same for all who are sent the same."""
        if self._table is None or self._table.rows is not rows:
            self._table = SharedTable(rows)
        return self._table

    def digests(self, member: LightMember) -> bytes:
        """Return the digests of a member's rows."""
        stamp = member.stamp.value
        if stamp not in self._digests:
            rows = [member.row(number) for number in range(member.partitions)]
            self._digests = {stamp: row_digests(rows)}
        return self._digests[stamp]


class ScaleMember(LightMember):
    """One light member, which has groups of partitions, too; `lives` until it is killed."""

    def __init__(self, uuid: str, shared: Shared, **facts: Any) -> None:
        super().__init__(uuid)
        self._shared, self._facts = shared, facts
        self.lives = True

    def serve(self, request: ExchangeRequest) -> ExchangeReply:
        """Answer one exchange."""
        return replace(super().serve(request), **self._facts)

    def _adopt_all(self, request: ExchangeRequest) -> None:
        if not request.full or self.rows:
            super()._adopt_all(request)
            return
        table = self._shared.table(request.rows)
        self.rows = SharedRows(table)
        self.stamp = Stamp(row.version for row in table.rows)
        for row in table.of.get(self.index, ()):
            self._begin(row)

    def _digests(self) -> bytes:
        return self._shared.digests(self)
