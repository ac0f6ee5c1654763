"""`stele-member inspect`: what a volume holds, and what is wrong with it, without changing it."""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stele.adapters.rocksdb.engine import RocksEngine
from stele.core.control import commands as m
from stele.core.formats import FIRST, LOG_SEGMENTS
from stele.member.admin.inspect import Inspection
from stele.wire.storage.keys import log_key
from stele.wire.storage.segment import HEADER_BYTES, encode_frame
from stele.wire.storage.volume import ServiceMigration, ServicesFile, encode_file
from tests.member.harness.cluster import Client, Cluster, hasty_cluster, key_in


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Without members yet; their logs are going to be in segments."""
    async with hasty_cluster(tmp_path, 2) as made:
        made.features = LOG_SEGMENTS
        yield made


async def run(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stele.member", "inspect", *arguments, stdout=-1, stderr=-1
    )
    out, problems = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), problems.decode()


async def read(folder: Path, *arguments: str) -> tuple[int, Inspection]:
    code, out, problems = await run(str(folder), "-o", "json", *arguments)
    assert not problems
    return code, msgspec.json.decode(out, type=Inspection)


def fingerprint(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


async def fill(made: Cluster) -> None:
    made.replicas = 1
    await made.form(1)
    client = Client(made)
    for seed in range(4):
        assert await client.set(0, key_in(0, 2, seed), b"v" * 100)
    await client.close()


@pytest.mark.parametrize("features", [FIRST, LOG_SEGMENTS])
async def test_a_sound_volume_is_told_and_not_changed(made: Cluster, features: int) -> None:
    made.features = features
    await fill(made)
    assert (made.members[0].folder / "log").exists() == (features >= LOG_SEGMENTS)
    member = made.members[0]
    made.store(1, ())
    await made.publish()
    await made.order(0, m.DeleteTablet(1, made.version(1)))
    code, _, problems = await run(str(member.folder))
    assert code == 2
    assert "is in use by a running member" in problems
    await member.kill()
    before = fingerprint(member.folder)
    code, found = await read(member.folder, "--verify")
    assert (code, found.problems, found.verified) == (0, [], True)
    assert found.instance is not None
    assert (found.instance.uuid, found.instance.incarnation) == (member.uuid, 1)
    held, gone = found.tablets
    assert (held.partition, held.state, held.role) == (0, "READY", "OWNER")
    assert (held.log.first, held.log.last) == (1, held.last.index)
    assert (gone.state, [each.generation for each in gone.quarantined]) == ("DELETED", [1])
    code, text, _ = await run(str(member.folder))
    assert code == 0
    assert "0 problems (only files were read; --verify also reads data and logs)" in text
    assert fingerprint(member.folder) == before


async def test_what_services_are_to_be_told_is_shown(tmp_path: Path) -> None:
    (tmp_path / "tablet-meta").mkdir()
    begun = ServiceMigration("m-1", "MOVE", "SOURCE", 3, 5, 2, 0, -1)
    file = tmp_path / "services"
    file.write_bytes(encode_file(ServicesFile((begun, msgspec.structs.replace(begun, committed=True)))))
    _, found = await read(tmp_path)
    assert found.services == [begun, msgspec.structs.replace(begun, committed=True)]
    _, text, _ = await run(str(tmp_path))
    line = "services: partition 3, MOVE m-1 of row 5, here SOURCE from index 0 to -1: "
    assert f"{line}not ended yet\n{line}committed\n" in text
    flip(file, 30)
    code, found = await read(tmp_path)
    assert (code, found.services) == (1, [])
    assert any(f"{file}: " in problem for problem in found.problems)


@pytest.mark.parametrize("name", ["instance", "tablet-meta/0", "consensus-meta/0", "table/current"])
async def test_a_damaged_file_is_a_problem(made: Cluster, name: str) -> None:
    await fill(made)
    await made.order(0, m.Fence(0, 5, True))
    await made.members[0].kill()
    path = made.members[0].folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    code, found = await read(made.members[0].folder)
    assert code == 1
    assert [name in problem for problem in found.problems] == [True]


async def test_verify_finds_flipped_bits_in_data_and_logs(made: Cluster) -> None:
    await fill(made)
    member = made.members[0]
    assert await member.stop() == 0
    table = max((member.folder / "data").glob("*.sst"), key=lambda path: path.stat().st_mtime)
    flip(table, 60)
    code, found = await read(member.folder)
    assert code == 1
    code, found = await read(member.folder, "--verify")
    assert code == 1
    assert "checksum mismatch" in found.problems[0] or "CORRUPT" in found.problems[0]


@pytest.mark.parametrize("at", [HEADER_BYTES + 1, -1])
async def test_a_flipped_bit_in_a_segment_is_found(made: Cluster, at: int) -> None:
    await fill(made)
    member = made.members[0]
    await member.kill()
    (segment,) = (member.folder / "log").glob("*.seg")
    flip(segment, at)
    before = fingerprint(member.folder)
    for arguments in ((), ("--verify",)):
        code, found = await read(member.folder, *arguments)
        assert code == 1
        assert any(f"{segment}: " in each and "checksum mismatch" in each for each in found.problems)
    assert fingerprint(member.folder) == before


async def test_a_segment_that_ends_within_a_frame_is_sound_and_stays_so(made: Cluster) -> None:
    """A killed process leaves it so; the next start cuts it off, an inspection does not."""
    await fill(made)
    member = made.members[0]
    await member.kill()
    (segment,) = (member.folder / "log").glob("*.seg")
    whole, expected = segment.read_bytes(), (await read(member.folder, "--verify"))[1]
    assert expected.problems == []
    segment.write_bytes(whole + encode_frame([(log_key(0, 99), b"record")])[0][:-1])
    before = fingerprint(member.folder)
    code, found = await read(member.folder, "--verify")
    assert (code, found) == (0, expected)
    assert fingerprint(member.folder) == before


async def test_verify_reads_what_is_in_quarantine(made: Cluster) -> None:
    made.replicas = 1
    await made.form(1)
    client, member = Client(made), made.members[0]
    for seed in range(50):
        value = b"".join(hashlib.sha256(b"%d %d" % (seed, n)).digest() for n in range(128))
        assert await client.set(0, key_in(1, 2, seed), value)
    await client.close()
    made.store(1, ())
    await made.publish()
    await made.order(0, m.DeleteTablet(1, made.version(1)))
    assert await member.stop() == 0
    assert (await read(member.folder, "--verify"))[1].problems == []
    table = max((member.folder / "data").glob("*.sst"), key=lambda path: path.stat().st_size)
    flip(table, table.stat().st_size // 2)
    assert (await read(member.folder))[1].problems == []
    code, found = await read(member.folder, "--verify")
    assert code == 1
    assert [problem.startswith("partition 1: ") for problem in found.problems] == [True]


@pytest.mark.parametrize("content", [b"", b'{"format":', b'{"format":1}', b"\xff\xfe"])
async def test_a_torn_copy_in_staging_is_a_problem(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tablet-meta").mkdir()
    (tmp_path / "staging" / "s").mkdir(parents=True)
    (tmp_path / "staging" / "s" / "0.json").write_bytes(content)
    code, found = await read(tmp_path, "--verify")
    assert code == 1
    assert any("staging/s/0.json: " in problem for problem in found.problems)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


async def test_a_folder_that_is_no_volume_is_named(tmp_path: Path) -> None:
    code, _, problems = await run(str(tmp_path))
    assert code == 2
    assert f"NOT_FOUND: {tmp_path} is not a member's volume" in problems


async def test_operations_that_belong_to_no_tablet_are_told(made: Cluster) -> None:
    await fill(made)
    folder = made.members[0].folder
    assert await made.members[0].stop() == 0
    engine = RocksEngine(folder / "data", folder / "wals")
    engine._db.put(bytes(10), b"an operation")
    engine.close()
    code, found = await read(folder)
    assert code == 1
    assert "family 'default' has 1 keys" in found.problems[0]
