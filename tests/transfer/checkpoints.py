"""A member's volume with a checkpoint of the real engine library, and copies by its transfer process."""

import json
from contextlib import asynccontextmanager

from aiohttp import web
from rocksdict import AccessType, Checkpoint, Options, Rdict

from stele.adapters.environment import read
from stele.adapters.rocksdb.options import data_options, log_options
from stele.core.control.commands import OpId
from stele.transfer.__main__ import Settings, make_app
from stele.transfer.client.copy import copy_tablets
from stele.wire.copy.jobs import CopyJob
from stele.wire.storage.keys import EXPIRY_BYTES, meta_key, pack_value, user_key
from stele.wire.storage.volume import APPLIED, DataState, encode_state

TOKEN = "secret"


def make_checkpoint(volume, session, tablets, token=TOKEN, *, fragments=True, versions=(17, 16)):
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
        totals = {}
        for (keyspace, key), (value, _) in entries.items():
            count, size = totals.get(keyspace, (0, 0))
            totals[keyspace] = (count + 1, size + len(key) + len(value) + EXPIRY_BYTES)
        written[meta_key(partition, generation, APPLIED)] = encode_state(DataState(OpId(2, 17), totals))
        for (keyspace, key), (value, expire_at_ms) in entries.items():
            written[user_key(partition, generation, keyspace, key)] = pack_value(value, expire_at_ms)
    for key, value in written.items():
        data[key] = value
    data.flush()
    Checkpoint(database).create_checkpoint(str(folder / "db"))
    del data
    database.close()
    described = [
        {
            "partition": partition,
            "generation": generation,
            "applied": [2, 17],
            "bytes": 1000,
            "versions": versions,
        }
        for partition, (generation, _) in tablets.items()
    ]
    text = json.dumps({"session": session, "token": token, "tablets": described, "fragments": fragments})
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


@asynccontextmanager
async def transfer(volume):
    """The transfer process's application on a free port; its URL."""
    settings = read(Settings, {"STELE_DATA_DIR": str(volume), "STELE_TRANSFER_PORT": "0"})
    runner = web.AppRunner(make_app(settings), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def copy_tablet(url, token, session, item, *, staging, progress):
    """One tablet, as a slot with this item alone copies it."""
    made = []
    job = CopyJob(session, "m", "c", url, token, (item,))
    copy_tablets(job, job.items, staging=staging, progress=progress, finished=made.append)
    (manifest,) = made
    return manifest
