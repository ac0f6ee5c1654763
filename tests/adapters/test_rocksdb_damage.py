"""A damaged block is an error, never a shorter answer."""

from pathlib import Path

import pytest

from stele.adapters.rocksdb.engine import RocksEngine, open_checkpoint
from stele.errors import Corrupt
from stele.wire.storage.keys import tablet_range, user_key

ENTRIES = 20_000
PARTITION, GENERATION = 3, 1
BEGIN, END = tablet_range(PARTITION, GENERATION)


def _checkpoint(folder: Path) -> Path:
    engine = RocksEngine(folder / "data", folder / "wals")
    for start in range(0, ENTRIES, 1000):
        engine.write_data(
            [
                (user_key(PARTITION, GENERATION, b"ks", b"%08d" % n), b"\0" * 8 + b"%d" % n * 20)
                for n in range(start, start + 1000)
            ]
        )
    path = folder / "checkpoint"
    engine.checkpoint(str(path))
    engine.close()
    return path


def _flip_in_the_middle(path: Path) -> None:
    largest = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 0x40
    largest.unlink()
    largest.write_bytes(bytes(damaged))


def test_a_whole_file_is_read_to_its_end(tmp_path: Path) -> None:
    reader = open_checkpoint(_checkpoint(tmp_path))
    assert len(reader.scan(BEGIN, END, ENTRIES + 1)) == ENTRIES
    reader.close()


def test_a_flipped_bit_is_told(tmp_path: Path) -> None:
    path = _checkpoint(tmp_path)
    _flip_in_the_middle(path)
    reader = open_checkpoint(path)
    with pytest.raises(Corrupt, match="checksum mismatch"):
        reader.scan(BEGIN, END, ENTRIES + 1)
    reader.close()
