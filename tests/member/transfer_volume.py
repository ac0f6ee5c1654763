"""A member's volume with a checkpoint, made by the real engine library, and what a finished copy holds."""

import json

from rocksdict import AccessType, Checkpoint, Options, Rdict

from stele.adapters.rocksdb.options import data_options, log_options
from stele.wire.keys import meta_key, pack_value, user_key

TOKEN = "secret"


def make_checkpoint(volume, session, tablets, token=TOKEN):
    """`tablets`: {partition: (generation, {(keyspace, key): (value, expire_at_ms)})}; returns all entries."""
    folder = volume / "checkpoints" / session
    folder.mkdir(parents=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    database = Rdict(
        str(volume / f"db-{session}"), options, column_families={"log": log_options(), "data": data_options()}
    )
    data = database.get_column_family("data")
    written = {}
    for partition, (generation, entries) in tablets.items():
        written[meta_key(partition, generation, b"applied")] = b"state"
        for (keyspace, key), (value, expire_at_ms) in entries.items():
            written[user_key(partition, generation, keyspace, key)] = pack_value(value, expire_at_ms)
    for key, value in written.items():
        data[key] = value
    data.flush()
    Checkpoint(database).create_checkpoint(str(folder / "db"))
    del data
    database.close()
    described = [
        {"partition": partition, "generation": generation, "applied": [2, 17], "bytes": 1000}
        for partition, (generation, _) in tablets.items()
    ]
    text = json.dumps({"session": session, "token": token, "tablets": described})
    (folder / "session.json").write_text(text)
    return written


def ingest(folder, files):
    """Ingest finished SST files as a member does, and return everything that is then in the data family."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    families = {"log": log_options(), "data": data_options()}
    database = Rdict(str(folder), options, column_families=families, access_type=AccessType.read_write())
    data = database.get_column_family("data")
    if files:
        data.ingest_external_file([str(file) for file in files])
    got = dict(data.items())
    del data
    database.close()
    return got
