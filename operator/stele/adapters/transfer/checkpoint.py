"""The source's side of a copy: a member's checkpoint, opened read-only, as streams of blocks."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from rocksdict import AccessType, Options, Rdict, ReadOptions

from stele.core.errors import Corrupt, Stale, Unavailable
from stele.wire.blocks import Entry, encode_stream
from stele.wire.copyjobs import SessionFile
from stele.wire.keys import tablet_range
from stele.wire.messages import SessionTablet

COLUMN_FAMILIES = ("log", "data")
READAHEAD_BYTES = 2 * 1024 * 1024

_decode = msgspec.json.Decoder(SessionFile).decode


def read_session(folder: Path) -> SessionFile | None:
    """`session.json` of `checkpoints/<session>`; None when there is no such session (any more)."""
    try:
        return _decode((folder / "session.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as wrong:
        raise Corrupt(f"{folder.name}/session.json: {wrong}") from None


class Checkpoint:
    """One open checkpoint. Threads may read it at the same time; `close` only when nobody does."""

    def __init__(self, folder: Path) -> None:
        """Raise Unavailable when RocksDB cannot open it."""
        families = {name: Options(raw_mode=True) for name in COLUMN_FAMILIES}
        mode = AccessType.read_only(error_if_log_file_exist=False)
        path = str(folder / "db")
        try:
            self._db = Rdict(path, Options(raw_mode=True), column_families=families, access_type=mode)
        except Exception as error:  # rocksdict raises bare Exception
            raise Unavailable(f"checkpoint {folder.name} cannot be opened: {error}", "SOURCE") from error
        self._data = self._db.get_column_family("data")

    def entries(self, partition: int, generation: int) -> Iterator[Entry]:
        """All entries of one generation of a tablet, ascending. Raise Corrupt for a block that is damaged.

        `items()` of rocksdict ends silently at a damaged block; only `status()` of its iterator tells.
        """
        begin, end = tablet_range(partition, generation)
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        options.set_readahead_size(READAHEAD_BYTES)
        place = self._data.iter(options)
        place.seek(begin)
        while place.valid():
            yield place.key(), place.value()
            place.next()
        try:
            place.status()
        except Exception as error:  # rocksdict raises bare Exception
            raise Corrupt(f"checkpoint, partition {partition}: {error}") from error

    def blocks(self, tablet: SessionTablet) -> Iterator[bytes]:
        """The stream of one tablet."""
        partition, generation = tablet.partition, tablet.generation
        return encode_stream(self.entries(partition, generation), partition, generation, tablet.applied)

    def close(self) -> None:
        """Let go of the files, so that the disk space of a removed session is free."""
        self._db.close()


def find_tablet(session: SessionFile, partition: int, generation: int) -> SessionTablet | None:
    """The tablet in this session, None when it is not part of it; Stale when it has another generation."""
    for tablet in session.tablets:
        if tablet.partition == partition:
            if tablet.generation != generation:
                has = f"generation {tablet.generation}, not {generation}"
                raise Stale(f"session {session.session} holds partition {partition} in {has}")
            return tablet
    return None
