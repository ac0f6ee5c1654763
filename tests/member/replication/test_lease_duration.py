"""The duration of leases changes without a restart, and no restart forgets a longer one."""

import pytest

from stele.core.tablet.leases import DRIFT
from stele.errors import Corrupt
from stele.member.replication.lease_duration import LeaseDuration, stored_lease
from stele.member.settings import LEASE_MS_MAX
from stele.member.storage.volume import LEASE
from stele.wire.storage.volume import LeaseFile, encode_file

HOLDER, P = 7, 0


class Disk:
    """The file of one volume, and a clock; `fails` makes the next write end in a full disk."""

    def __init__(self, stored: LeaseFile | None = None) -> None:
        self.now, self.stored, self.fails = 100.0, stored, False
        self.begin(3000)

    def begin(self, settings_ms: int) -> None:
        """A process starts."""
        self.duration = LeaseDuration(self.stored, settings_ms, self.save, lambda: self.now)
        self.grantor = self.duration.grantor

    async def save(self, file: LeaseFile) -> None:
        if self.fails:
            raise OSError(28, "no space left")
        self.stored = file

    def granted(self) -> float:
        """Grant a lease; how long it is valid at its holder at most."""
        return self.now + self.grantor.renew(HOLDER, self.now)[0] * (1 - DRIFT)

    def free_at(self) -> float:
        """When a fence of the holder is in force."""
        self.grantor.leave(P, HOLDER, self.now)
        return self.now + self.grantor.wait_seconds(P, self.now)


async def test_a_shorter_lease_is_in_force_at_once_and_a_longer_one_is_waited_for() -> None:
    disk = Disk()
    await disk.duration.adopt(10_000)
    until = disk.granted()
    await disk.duration.adopt(1000)
    assert disk.granted() < disk.now + 1
    assert disk.stored == LeaseFile(1000, 10_000)
    assert disk.free_at() >= until


@pytest.mark.parametrize("settings_ms", [1000, 3000, 10_000])
async def test_a_restart_waits_for_the_longest_lease_that_may_be_valid(settings_ms: int) -> None:
    disk = Disk()
    await disk.duration.adopt(10_000)
    until = disk.granted()
    await disk.duration.adopt(1000)
    disk.now += 0.5
    disk.begin(settings_ms)
    assert disk.grantor.lease_seconds == 1.0
    assert disk.free_at() >= until
    disk.begin(settings_ms)
    assert disk.free_at() >= until


async def test_what_is_over_is_forgotten() -> None:
    disk = Disk()
    await disk.duration.adopt(10_000)
    await disk.duration.adopt(1000)
    disk.now += 9.9
    await disk.duration.adopt(1000)
    assert disk.stored == LeaseFile(1000, 10_000)
    disk.now += 0.2
    await disk.duration.adopt(None)
    assert disk.stored == LeaseFile(1000, 1000)


async def test_a_longer_lease_is_written_before_it_is_granted() -> None:
    disk = Disk(LeaseFile(3000, 3000))
    disk.fails = True
    await disk.duration.adopt(10_000)
    assert disk.grantor.lease_seconds == 3.0
    disk.fails = False
    await disk.duration.adopt(10_000)
    assert (disk.grantor.lease_seconds, disk.stored) == (10.0, LeaseFile(10_000, 10_000))


async def test_many_changes_in_a_row_keep_the_longest_of_all() -> None:
    disk, until = Disk(), 0.0
    for lease_ms in (10_000, 2000, 6000, 500, 4000):
        await disk.duration.adopt(lease_ms)
        until = max(until, disk.granted())
        disk.now += 1.0
    disk.begin(500)
    assert disk.free_at() >= until


class FakeVolume:
    def __init__(self, content: bytes | None) -> None:
        self.content = content

    def load_lease(self) -> LeaseFile | None:
        if self.content == b"damaged":
            raise Corrupt("lease: the checksum is wrong")
        return None

    def write(self, files: dict[str, bytes]) -> None:
        self.content = files[LEASE]


def test_the_first_process_writes_what_it_is_about_to_grant() -> None:
    volume = FakeVolume(None)
    assert stored_lease(volume, 3000) == LeaseFile(3000, 3000)  # type: ignore[arg-type]
    assert volume.content == encode_file(LeaseFile(3000, 3000))


def test_a_damaged_file_means_that_the_longest_lease_may_be_valid() -> None:
    assert stored_lease(FakeVolume(b"damaged"), 3000) == LeaseFile(3000, LEASE_MS_MAX)  # type: ignore[arg-type]
