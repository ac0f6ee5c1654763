"""One suite for the files of a member's volume: on a real file system, and on the simulation's disk.

What promises rest on: a file is old or new and never in between, what `write` returned from stays, and damage
is told, never read.
"""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from stele.errors import Conflict, Corrupt
from stele.member.storage import failpoints
from stele.member.storage.volume import (
    CHECKPOINTS,
    CONSENSUS,
    DATA,
    INSTANCE,
    STAGING,
    TABLETS,
    MetaWriter,
    Volume,
)
from stele.wire.storage.volume import TABLE_FILE, Consensus, Superblock, TableFile, decode_file, encode_file
from tests.fakes.disk import Disk
from tests.fakes.loop import Clock

CLUSTER = "cluster-uid"
FILES = tuple(f"{TABLETS}/{number}" for number in range(6))
"""More than are written one after the other."""


def block(generation: int) -> bytes:
    return encode_file(Superblock("READY", generation, generation))


class Case(Protocol):
    """One volume. `open` is what the next process does with it."""

    def open(self) -> Volume: ...

    def cut(self, work: Callable[[], None], after: str) -> None:
        """Begin to write, and lose the power at that step."""
        ...

    def fill(self, name: str) -> None:
        """There is no room to write that file."""
        ...

    def read(self, name: str) -> bytes: ...

    def damage(self, name: str, content: bytes) -> None: ...


class PowerLost(BaseException):
    """The machine ends here."""


@dataclass
class Real:
    """In a folder. Without power all is kept that was synced, and more: what was only renamed."""

    root: Path

    def open(self) -> Volume:
        volume = Volume(self.root)
        volume.create_folders()
        return volume

    def cut(self, work: Callable[[], None], after: str) -> None:
        def die() -> None:
            raise PowerLost

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoints, "_die", die)
            patch.setattr(failpoints._Armed, "name", after)
            with pytest.raises(PowerLost):
                work()

    def fill(self, name: str) -> None:
        """What is written goes to a device that is always full."""
        (self.root / f"{name}.new").symlink_to("/dev/full")

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def damage(self, name: str, content: bytes) -> None:
        (self.root / name).write_bytes(content)


@dataclass
class Simulated:
    """On the disk of a machine: what is begun when it ends is done, not done, or in part."""

    root: Path
    disk: Disk = field(init=False)

    def __post_init__(self) -> None:
        self.disk = Disk(self.root, Clock(1))

    def open(self) -> Volume:
        return self.disk.open()

    def cut(self, work: Callable[[], None], after: str) -> None:
        self.disk.crash([work], power_lost=True)

    def fill(self, name: str) -> None:
        self.disk.free_bytes = 0

    def read(self, name: str) -> bytes:
        return self.disk.files[name]

    def damage(self, name: str, content: bytes) -> None:
        self.disk.files[name] = content


@pytest.fixture(params=["real", "simulated"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    root = tmp_path / "volume"
    return Real(root) if request.param == "real" else Simulated(root)


def started(case: Case) -> Volume:
    """A volume with an identity and a database, as after the first start."""
    volume = case.open()
    volume.load_instance(CLUSTER, "uuid-1")
    volume.path(DATA).mkdir(exist_ok=True)
    (volume.path(DATA) / "CURRENT").touch()
    return volume


def blocks(volume: Volume) -> dict[int, int | str]:
    """Generations of the tablets that are there, or what is wrong with one."""
    found = volume.load_all(TABLETS, Superblock)
    return {n: each.code if isinstance(each, Corrupt) else each.generation for n, each in found}


def test_what_was_written_is_found_by_the_next_process(case: Case) -> None:
    volume = started(case)
    volume.write({FILES[0]: block(1), FILES[1]: block(2)})
    volume.write({FILES[0]: block(3), TABLE_FILE: encode_file(TableFile(epoch=4))})
    found = case.open()
    assert blocks(found) == {0: 3, 1: 2}
    assert found.load_table().epoch == 4


@pytest.mark.parametrize("after", ["file.aside", "file.renamed"])
@pytest.mark.parametrize("number", [1, len(FILES)])
def test_without_power_each_file_is_old_or_new(case: Case, after: str, number: int) -> None:
    names = FILES[:number]
    volume = started(case)
    volume.write({name: block(1) for name in names})
    case.cut(partial(volume.write, {name: block(2) for name in names}), after)
    found = case.open()
    assert set(blocks(found)) == set(range(number))
    assert set(blocks(found).values()) <= {1, 2}
    found.write({name: block(3) for name in names})
    assert blocks(case.open()) == dict.fromkeys(range(number), 3)


def test_on_a_full_volume_a_write_fails_and_the_file_is_the_old_one(case: Case) -> None:
    volume = started(case)
    volume.write({FILES[0]: block(1)})
    case.fill(FILES[0])
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as raised:
        volume.write({FILES[0]: block(2)})
    assert raised.value.errno == errno.ENOSPC
    assert decode_file(Superblock, case.read(FILES[0]), "").generation == 1
    assert blocks(case.open()) == {0: 1}


def test_a_damaged_file_is_told_and_the_others_are_read(case: Case) -> None:
    volume = started(case)
    volume.write({name: block(1) for name in FILES[:4]})
    whole = case.read(FILES[0])
    case.damage(FILES[0], whole[:-1])
    case.damage(FILES[1], b"")
    case.damage(FILES[2], whole[:-1] + bytes([whole[-1] ^ 1]))
    case.damage(TABLE_FILE, b"garbage")
    found = case.open()
    assert {n: each if each == 1 else "damaged" for n, each in blocks(found).items()} == {
        0: "damaged",
        1: "damaged",
        2: "damaged",
        3: 1,
    }
    assert found.load_table() == TableFile()


def test_files_of_another_kind_are_not_taken_for_tablets(case: Case) -> None:
    volume = started(case)
    volume.write(
        {FILES[0]: encode_file(Consensus(promised=3)), f"{CONSENSUS}/0": encode_file(Consensus(promised=3))}
    )
    found = case.open()
    assert isinstance(dict(found.load_all(TABLETS, Superblock))[0], Corrupt)
    assert dict(found.load_all(CONSENSUS, Consensus))[0] == Consensus(promised=3)


def test_each_start_is_counted(case: Case) -> None:
    started(case)
    found = [case.open().load_instance(CLUSTER, f"uuid-{number}") for number in (2, 3)]
    assert [(each.uuid, each.incarnation) for each in found] == [("uuid-1", 2), ("uuid-1", 3)]


def test_the_volume_of_another_cluster_is_left_alone(case: Case) -> None:
    started(case)
    with pytest.raises(Conflict) as raised:
        case.open().load_instance("another", "uuid-2")
    assert raised.value.code == "WRONG_CLUSTER"
    assert case.open().load_instance(CLUSTER, "uuid-2").uuid == "uuid-1"


def test_a_damaged_identity_is_not_guessed(case: Case) -> None:
    started(case).write({FILES[0]: block(1)})
    case.damage(INSTANCE, case.read(INSTANCE)[:-1])
    with pytest.raises(Corrupt):
        case.open().load_instance(CLUSTER, "uuid-2")


@pytest.mark.parametrize("lost", ["its database", "a mark of damage"])
def test_a_volume_that_is_not_whole_is_another_one_once_it_is_put_aside(case: Case, lost: str) -> None:
    volume = started(case)
    volume.write({FILES[0]: block(1), TABLE_FILE: encode_file(TableFile(epoch=4))})
    if lost == "its database":
        (volume.path(DATA) / "CURRENT").unlink()
    else:
        volume.mark_damaged("a block of the database is damaged")
    found = case.open()
    with pytest.raises(Corrupt):
        found.load_instance(CLUSTER, "uuid-2")
    found.quarantine_volume("it is not whole")
    made = found.load_instance(CLUSTER, "uuid-2")
    assert (made.uuid, made.incarnation) == ("uuid-2", 1)
    assert (blocks(found), found.load_table()) == ({}, TableFile())
    assert case.open().load_instance(CLUSTER, "uuid-3").uuid == "uuid-2"


def test_an_empty_volume_has_nothing_and_all_its_folders(case: Case) -> None:
    volume = case.open()
    assert (blocks(volume), volume.load_table()) == ({}, TableFile())
    for name in (STAGING, CHECKPOINTS):
        assert list(volume.path(name).iterdir()) == []
    assert volume.free_bytes() > 0


def test_a_sweep_takes_folders_but_those_that_are_kept(case: Case) -> None:
    volume = started(case)
    for name in ("one", "two"):
        volume.path(f"{STAGING}/{name}").mkdir()
        (volume.path(f"{STAGING}/{name}") / "file").write_bytes(b"x")
    volume.delete_folders(STAGING, frozenset({"two"}))
    assert [path.name for path in volume.path(STAGING).iterdir()] == ["two"]


async def test_of_two_saves_of_one_file_the_later_stays(case: Case) -> None:
    volume = started(case)
    with ThreadPoolExecutor(1) as thread:
        writer = MetaWriter(volume, thread)
        for generation in range(1, 4):
            await writer.save(FILES[0], Superblock("READY", generation, generation))
            assert decode_file(Superblock, case.read(FILES[0]), "").generation == generation


async def test_who_saves_hears_that_there_is_no_room(case: Case) -> None:
    volume = started(case)
    case.fill(FILES[0])
    with ThreadPoolExecutor(1) as thread, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        await MetaWriter(volume, thread).save(FILES[0], Superblock("READY", 1, 1))
