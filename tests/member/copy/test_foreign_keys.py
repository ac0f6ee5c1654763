"""Files of a copy are taken in only when all their keys are of the tablet and generation they are for."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c
from rocksdict import SstFileWriter

from stele.adapters.rocksdb.options import data_options
from stele.core.control import commands as m
from stele.member.storage.volume import STAGING
from stele.wire.copy.jobs import Manifest
from stele.wire.storage import keys
from stele.wire.storage.volume import APPLIED
from tests.member.admin.test_tablet_info import tablet
from tests.member.harness.cluster import hasty_cluster
from tests.member.harness.single_member import OTHER, P, SingleMember
from tests.member.storage import crash_steps as steps

FOREIGN: dict[str, Callable[[int], bytes]] = {
    "an earlier generation": lambda generation: keys.user_key(P, generation - 1, b"default", b"k"),
    "another partition": lambda generation: keys.user_key(P + 1, 1, b"default", b"k"),
    "the state of another partition": lambda generation: keys.meta_key(P + 1, 1, APPLIED),
    "a later generation": lambda generation: keys.user_key(P, generation + 1, b"default", b"k"),
}


def add(made: SingleMember, session: str, key: bytes) -> None:
    """One more entry for the file of a session; nothing else of it tells."""
    (path,) = (path for path in made.engine.files if session in path)
    made.engine.files[path] = sorted([*made.engine.files[path], (key, b"foreign")])


@pytest.mark.parametrize("whose", FOREIGN)
async def test_a_file_with_keys_of_something_else_is_refused(made: SingleMember, whose: str) -> None:
    assert await made.code(m.StartTabletCopy("copy", P, 1, OTHER)) == "OK"
    key = FOREIGN[whose](made.replica.generation)
    made.stage("bad")
    add(made, "bad", key)
    result = await made.command(m.Ingest("bad", (P,)))
    assert (result.code, made.replica.state.value) == ("CORRUPT", "COPYING")
    assert "bad.sst: its keys begin with" in result.detail
    assert (made.engine.get(key), made.get(b"copied")) == (None, None)
    await made.take_in("good")


async def test_garbage_in_staging_is_refused(made: SingleMember) -> None:
    assert await made.code(m.StartTabletCopy("copy", P, 1, OTHER)) == "OK"
    ingest = m.Ingest("s", (P,))
    assert await made.code(ingest) == "NOT_FOUND"
    assert await made.code(m.Ingest("../x", (P,))) == "BAD_REQUEST"
    made.stage("s")
    manifest = made.node.volume.path(STAGING) / "s" / f"{P}.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(b"{")
    assert await made.code(ingest) == "CORRUPT"
    manifest.write_bytes(b'{"format":1}')
    refused = await made.command(ingest)
    assert (refused.code, "0.json: format is 1, expected 2" in refused.detail) == ("UNKNOWN_FORMAT", True)
    manifest.write_bytes(whole)
    (manifest.parent / "s.sst").write_bytes(b"abc")
    assert await made.code(ingest) == "CORRUPT"


async def test_real_files_with_keys_of_something_else_harm_nobody(tmp_path: Path) -> None:
    """The manifest fits, and names a tablet that is served."""
    async with hasty_cluster(tmp_path, 15) as made:
        world = steps.World(made)
        await world.form()
        for index in (steps.OWNER, steps.TARGET):
            await made.members[index].start_transfer()
        served = world.take("backed up")
        await world.write(served)
        session = await steps.receive(world, bad := world.take("elsewhere"))
        folder = made.members[steps.TARGET].folder / "staging" / session
        replace(folder, bad, [(keys.user_key(served, 1, b"default", b"k"), b"foreign")])
        before = await made.digest(steps.TARGET, served)
        refused = await made.command(steps.TARGET, m.Ingest(session, (bad,)))
        assert (refused.code, (await tablet(made, steps.TARGET, bad)).state) == ("CORRUPT", "COPYING")
        assert await made.digest(steps.TARGET, served) == before
        await steps.ingest(world)


def replace(folder: Path, partition: int, entries: list[tuple[bytes, bytes]]) -> None:
    """A copy of one file holds these entries, and its manifest says so."""
    path = folder / f"{partition}.json"
    manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    (fragment,) = manifest.fragments
    sst = folder / fragment.file
    sst.unlink()
    writer = SstFileWriter(data_options())
    writer.open(str(sst))
    for key, value in entries:
        writer[key] = value
    writer.finish()
    content = sst.read_bytes()
    made = msgspec.structs.replace(fragment, file_bytes=len(content), file_crc32c=crc32c(content))
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, fragments=(made,))))
