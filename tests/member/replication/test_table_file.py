"""The persisted table: read in either format, written in the new one, whole after a crash at any point."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crc32c import crc32c

from stele.core.control.commands import MemberInfo, Row
from stele.core.formats import SPOKEN
from stele.core.table.table import Partition, stamp_of
from stele.errors import Corrupt
from stele.member.replication.table_cache import TableCache
from stele.member.storage import durable
from stele.member.storage.volume import MetaWriter, Volume
from stele.wire.storage.volume import TABLE_FILE, LegacyTableFile, TableFile, encode_file
from tests.member.harness.cluster import Client, Cluster, cluster

MEMBERS = (MemberInfo(0, "m0", "u-0", "10.0.0.1"), MemberInfo(4, "m4", "u-4", "10.0.0.2"))
LEGACY = LegacyTableFile(7, MEMBERS, ((0, 4), (4,), ()))
NEW_TITLE, OLD_TITLE = b"stele TableFile 2\n", b"stele TableFile 1\n"


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    made = Volume(tmp_path)
    made.create_folders()
    made.write({TABLE_FILE: encode_file(LEGACY)})
    return made


def test_a_legacy_table_is_taken_in_with_one_version_for_all(volume: Volume) -> None:
    table = TableCache(volume.load_table(), "u-4")
    assert table.me == 4, "the legacy format names this member by its UUID only"
    assert table.rows == [Partition(7, (0, 4)), Partition(7, (4,)), Partition(7, ())]
    assert table.stamp == stamp_of([7, 7, 7])
    assert TableCache(volume.load_table(), "another").me == -1


async def test_the_first_persist_writes_the_new_format(volume: Volume) -> None:
    table = TableCache(volume.load_table(), "u-4")
    assert volume.path(TABLE_FILE).read_bytes().startswith(OLD_TITLE), "reading alone changes nothing"
    with ThreadPoolExecutor(1) as thread:
        await MetaWriter(volume, thread).save(TABLE_FILE, table.to_file([Row(1, 8, (0,))]))
    assert volume.path(TABLE_FILE).read_bytes().startswith(NEW_TITLE)
    read = TableCache(volume.load_table(), "u-4")
    assert read.rows == [Partition(7, (0, 4)), Partition(8, (0,)), Partition(7, ())]
    assert (read.me, read.members) == (4, {0: MEMBERS[0], 4: MEMBERS[1]})


@pytest.mark.parametrize("dies_at", ["write", "fsync", "replace", "sync_folder"])
def test_a_crash_while_upgrading_leaves_a_whole_table(
    volume: Volume, dies_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the rename it is the legacy table, afterwards the new one; both say the same."""
    before = volume.load_table()
    content = encode_file(TableCache(before, "u-4").to_file())

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    if dies_at == "write":
        volume.path(TABLE_FILE + ".new").write_bytes(content[: len(content) // 2])
    else:
        where = durable if dies_at == "sync_folder" else os
        with monkeypatch.context() as patched:
            patched.setattr(where, dies_at, die)
            with pytest.raises(KeyboardInterrupt):
                volume.write({TABLE_FILE: content})
    title = NEW_TITLE if dies_at == "sync_folder" else OLD_TITLE
    assert volume.path(TABLE_FILE).read_bytes().startswith(title)
    assert volume.load_table().rows == before.rows
    volume.write({TABLE_FILE: content})
    assert volume.load_table().rows == before.rows


def test_a_damaged_table_is_put_aside(volume: Volume) -> None:
    damaged = encode_file(TableFile()).replace(NEW_TITLE, b"stele TableFile 3\n")
    volume.write({TABLE_FILE: damaged})
    volume.check_features(SPOKEN)
    assert volume.load_table() == TableFile()
    assert volume.path("table/current.damaged").read_bytes() == damaged


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def of_a_later_format() -> bytes:
    line, body = b"stele TableFile 4\n", b"whatever it holds"
    return line + crc32c(line + body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (encode_file(TableFile(features=3)), "its cluster uses format 3, this member speaks formats 1 to 2"),
        (of_a_later_format(), "it is b'stele TableFile 4.n', this build reads up to b'stele TableFile 3"),
    ],
)
async def test_a_build_refuses_a_volume_that_a_newer_one_has_used_and_changes_nothing(
    tmp_path: Path, content: bytes, text: str
) -> None:
    """The process says which build is needed, and ends; whatever the newer one wrote beside it stays."""
    async with cluster(tmp_path, 1, replicas=1) as made:
        member = made.members[0]
        assert await Client(made).set(0, b"k", b"v")
        await member.stop()
        (member.folder / TABLE_FILE).write_bytes(content)
        before = contents(member.folder)
        await member.start()
        assert member.process is not None
        assert await member.process.wait() == 1
        said = member.log().splitlines()[-1]
        assert said.startswith("stele-member: UNKNOWN_FORMAT: ")
        assert re.search(text, said)
        assert said.endswith("upgrade this member")
        assert contents(member.folder) == before


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(3, 8, (0,)), "row of partition 3; the table has 3 partitions"),
        (Row(0, 8, (0, 0)), "partition 0 names a member twice"),
        (Row(0, 7, (4, 0)), r"partition 0 version 7 is \(0, 4\) in one table and \(4, 0\) in another"),
    ],
)
def test_rows_that_cannot_be_are_refused(volume: Volume, row: Row, reason: str) -> None:
    table = TableCache(volume.load_table(), "u-4")
    with pytest.raises(Corrupt, match=reason):
        table.newer([row])
    assert table.newer([Row(0, 7, (0, 4)), Row(1, 6, (0,)), Row(2, 8, (0,))]) == [Row(2, 8, (0,))]


async def test_a_member_goes_on_from_a_legacy_table(two: Cluster, tmp_path: Path) -> None:
    """A real process: it serves what it owned as soon as it is asked, and its next table is a new one."""
    client = Client(two)
    for n in range(20):
        assert await client.set(0, b"k%d" % n, b"%d" % n)
    versions = {row.version for row in two.rows.values()}
    assert versions == {1}, "as after an upgrade: every partition has the version of the whole table"
    await two.members[1].stop()
    rows = tuple(two.rows[p].replicas for p in range(two.partitions))
    path = tmp_path / "m1" / TABLE_FILE
    path.write_bytes(encode_file(LegacyTableFile(1, two.dictionary(), rows)))
    await two.members[1].start()
    await two.hello(two.members[1])
    await two.served()
    assert path.read_bytes().startswith(NEW_TITLE), "the master's epoch was persisted with the table"
    for n in range(20):
        assert await Client(two).call(1, b"GET", b"k%d" % n) == b"%d" % n
