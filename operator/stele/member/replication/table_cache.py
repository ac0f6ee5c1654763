"""The published table as known to this member, in memory; `to_file` returns what is persisted."""

from collections.abc import Iterable

from stele.core.control.commands import ExchangeRequest, MemberInfo, Row
from stele.core.kv.keyspaces import catalog_fault
from stele.core.table.digests import partitions_in, row_digests
from stele.core.table.groups import PartitionGroups, groups_fault, is_extension
from stele.core.table.steps import jump
from stele.core.table.table import EMPTY, Partition, Stamp, newer, row_fault
from stele.errors import Corrupt
from stele.member.replication.keyspaces import Keyspaces
from stele.member.replication.routes import Routes
from stele.member.storage import failpoints
from stele.wire.storage.volume import StoredRow, TableFile


class TableCache:
    """Rows by partition. `epoch` is the highest epoch seen; versions never decrease.

    `main` counts the partitions outside of groups, and never changes once it is known.

    `owned` are the partitions whose row names this member as their owner.

    `stamp` is that of the rows, `published_stamp` that of the versions that a master sent last: other members
    send rows, too.

    `features` and the versions of `keyspaces` and `groups` never decrease either, and these are in force here
    once they are on the volume, as are the `routes` of requests.
    """

    def __init__(self, file: TableFile, uuid: str = "") -> None:
        """`uuid` is this member's own: tables in the legacy format lack its index."""
        self.epoch = file.epoch
        self.me = file.self_index
        self.replicas = file.replicas
        self.state = file.state
        self.member_list_version = file.member_list_version
        self.members: dict[int, MemberInfo] = {info.index: info for info in file.members}
        if self.me < 0:
            self.me = next((info.index for info in file.members if info.uuid == uuid), -1)
        self.rows = [Partition(row.version, row.replicas) for row in file.rows]
        self._stored = [StoredRow(row.version, row.replicas) for row in self.rows]
        self.owned = self._find_owned()
        self._stamp = Stamp(row.version for row in self.rows)
        self.take_for_published()
        self._digests: bytes | None = None
        self._coming: tuple[Row, ...] = ()
        self.features = self._coming_features = file.features
        self.keyspaces = Keyspaces(file.catalog)
        self._coming_catalog = file.catalog
        self.groups = self._coming_groups = file.groups
        self.main = file.groups.main(len(self.rows))
        self.routes = Routes(file.groups, self.main, file.catalog)
        self.known_as = file.known_as

    def _find_owned(self) -> set[int]:
        return {number for number, row in enumerate(self.rows) if row.owner == self.me}

    def note_known(self) -> bool:
        """Note that all members have this one on their lists, by its index. Returns whether that is new."""
        before, self.known_as = self.known_as, self.me
        return before != self.known_as

    def resize(self, request: ExchangeRequest) -> None:
        """Set the number of partitions. Raises Corrupt when another number of them is outside of groups.

        A master that has just taken over may not know of all groups yet.
        """
        known, partitions, groups = len(self.rows), request.partitions, self._coming_groups
        if request.groups is not None and request.groups.version > groups.version:
            groups = request.groups
            if fault := groups_fault(groups, partitions) or self._groups_jump(groups):
                raise Corrupt(f"the groups of partitions: {fault}")
        if known and not groups.main(known) == self._coming_groups.main(known) <= partitions <= groups.end(
            known
        ):
            raise Corrupt(f"the table has {known} partitions here, {partitions} at the master")
        if partitions > known:
            self.rows += [EMPTY] * (partitions - known)
            self._stored += [StoredRow(EMPTY.version, EMPTY.replicas)] * (partitions - known)
            self._digests = None
            self._stamp = Stamp(row.version for row in self.rows)
            self.take_for_published()
        self._coming_groups, self.main = groups, groups.main(partitions)

    def _groups_jump(self, groups: PartitionGroups) -> str:
        known = self._coming_groups
        if known.version and not is_extension(groups, known):
            return "a partition belongs to another keyspace here"
        return jump("their version", known.version, groups.version) if known.version else ""

    def row_of(self, partition: int) -> Partition:
        """Return a partition's row, an empty one for a partition of a group that is not known yet."""
        return self.rows[partition] if partition < len(self.rows) else EMPTY

    def replicas_of(self, partition: int) -> int:
        """Return how many replicas a partition should have; 0 when that is not known."""
        group = self.groups.group_of(partition)
        return self.replicas if group is None else group.replicas

    @property
    def stamp(self) -> int:
        return self._stamp.value

    @property
    def published_stamp(self) -> int:
        return self._published.value

    def take_for_published(self) -> None:
        """Take all rows for what a master sent last: it compares them with its own."""
        self._published = Stamp(row.version for row in self.rows)

    def published(self, rows: Iterable[Row]) -> None:
        """Note rows that a master has sent: they, or newer ones, are on the volume."""
        for row in rows:
            self._published.set(row.partition, row.version)

    def jump(self, request: ExchangeRequest) -> str:
        """Return which number of a request jumps; empty when none does, or nothing was known before."""
        if self.epoch and (text := jump("epoch", self.epoch, request.epoch)):
            return text
        if self.member_list_version:
            return jump("the member list's version", self.member_list_version, request.member_list_version)
        return ""

    def version_jump(self, partition: int, version: int) -> str:
        """Like `jump`, for a version or term of one partition."""
        known = self.rows[partition].version
        return jump(f"partition {partition}: version", known, version) if known else ""

    def newer(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that are newer than this table's. Raises Corrupt for an impossible row."""
        return [row for row in rows if self._is_newer(row)]

    def _is_newer(self, row: Row) -> bool:
        if not 0 <= row.partition < len(self.rows):
            raise Corrupt(f"row of partition {row.partition}; the table has {len(self.rows)} partitions")
        fault = row_fault(row.replicas)
        if fault is not None:
            raise Corrupt(f"partition {row.partition} {fault}")
        if text := self.version_jump(row.partition, row.version):
            raise Corrupt(text)
        found = Partition(row.version, row.replicas)
        return newer(row.partition, self.rows[row.partition], found) is found

    def brings_members(self, request: ExchangeRequest) -> bool:
        """Return whether a request has a member list: it always contains its reader, so an empty one was
        left out."""
        return request.member_list_version > self.member_list_version and bool(request.members)

    def brings_catalog(self, request: ExchangeRequest) -> bool:
        """Return whether a request has a newer catalog of keyspaces. Raises Corrupt for an impossible one."""
        catalog = request.catalog
        if catalog is None or catalog.version <= self.keyspaces.catalog.version:
            return False
        known = self.keyspaces.catalog.version
        if fault := catalog_fault(catalog) or (known and jump("the catalog", known, catalog.version)):
            raise Corrupt(str(fault))
        return True

    def lacks_groups(self, request: ExchangeRequest) -> bool:
        """Return whether a request was made for a member that has newer groups than this table, which was
        damaged since."""
        return request.groups is None and request.groups_version > self.groups.version

    def brings_groups(self, request: ExchangeRequest) -> bool:
        """Return whether a request has newer groups of partitions, which `resize` has checked."""
        return request.groups is not None and request.groups.version > self.groups.version

    def knows(self, request: ExchangeRequest) -> bool:
        """Return whether a request has nothing new besides its rows."""
        return (
            request.epoch == self.epoch
            and request.self_index == self.me
            and request.state == self.state
            and request.format <= self.features
            and not self.brings_members(request)
            and not self.brings_catalog(request)
            and not self.brings_groups(request)
            and request.replicas in {0, self.replicas}
        )

    def adopt(self, request: ExchangeRequest) -> None:
        """Adopt everything about the cluster in a request, besides its rows."""
        if request.self_index != self.me:
            self.me = request.self_index
            self.owned = self._find_owned()
        self.epoch = max(self.epoch, request.epoch)
        self.replicas = request.replicas or self.replicas
        self.state = request.state
        self._coming_features = max(self._coming_features, request.format)
        if self.brings_catalog(request) and request.catalog is not None:
            self._coming_catalog = request.catalog
        if self.brings_members(request):
            self.member_list_version = request.member_list_version
            self.members = {info.index: info for info in request.members}

    def saved(self) -> None:
        """Put in force the features, the groups and the catalog that the saved file has."""
        self.features, self.groups = self._coming_features, self._coming_groups
        self.routes.use(self.groups, self.main, self._coming_catalog)
        if self._coming_catalog is not self.keyspaces.catalog:
            failpoints.hit("keyspaces.saved")
            self.keyspaces.use(self._coming_catalog)

    def set(self, partition: int, row: Partition) -> None:
        self.rows[partition] = row
        self._stored[partition] = StoredRow(row.version, row.replicas)
        if row.owner == self.me:
            self.owned.add(partition)
        else:
            self.owned.discard(partition)
        self._stamp.set(partition, row.version)
        self._digests = None

    @property
    def digests(self) -> bytes:
        """Return the digests of the rows, made once until a row changes."""
        if self._digests is None:
            self._digests = row_digests(self.rows)
        return self._digests

    def to_rows(self, ranges: Iterable[int] | None = None) -> tuple[Row, ...]:
        """Return the rows that were ever assigned, as messages have them; with `ranges`, those of these."""
        total = len(self.rows)
        numbers = range(total) if ranges is None else partitions_in(ranges, total)
        rows = ((number, self.rows[number]) for number in numbers)
        return tuple(Row(number, row.version, row.replicas) for number, row in rows if row.version)

    def to_file(self, coming: Iterable[Row] | None = None) -> TableFile:
        """Return the table to persist, with `coming` rows as if they were known already.

        The rows are kept: a file that is written before they take effect must have them, too.
        """
        if coming is not None:
            self._coming = tuple(coming)
        rows = self._stored.copy()
        for row in self._coming:
            if row.version > rows[row.partition].version:
                rows[row.partition] = StoredRow(row.version, row.replicas)
        return TableFile(
            epoch=self.epoch,
            self_index=self.me,
            replicas=self.replicas,
            state=self.state,
            member_list_version=self.member_list_version,
            members=tuple(self.members.values()),
            rows=tuple(rows),
            features=self._coming_features,
            catalog=self._coming_catalog,
            groups=self._coming_groups,
            known_as=self.known_as,
        )
