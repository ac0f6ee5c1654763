"""A member's volume with a checkpoint of the real engine library, and copies by its transfer process."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

from aiohttp import web
from rocksdict import AccessType, Checkpoint, Options, Rdict

from stele.adapters import pod_token
from stele.adapters.environment import read
from stele.adapters.rocksdb.options import data_options, log_options
from stele.adapters.tls.http_site import HttpSite
from stele.core.control.commands import CopyItem, OpId
from stele.core.security.identity import Holder, Role
from stele.transfer.__main__ import Settings, make_app
from stele.transfer.client.copy import copy_tablets
from stele.wire.copy.jobs import CopyJob
from stele.wire.storage.keys import EXPIRY_BYTES, meta_key, pack_value, user_key
from stele.wire.storage.volume import (
    APPLIED,
    MEMBER_SECURITY,
    DataState,
    MemberSecurity,
    encode_file,
    encode_state,
)
from tests.fakes.pki import Leaf, shared_ca

TOKEN = "secret"
CLUSTER = "11111111-2222"
NOW_MS = int(time.time() * 1000)
ITEM = CopyItem(partition=7, source_generation=3, generation=9)
ENTRIES = {(b"default", b"k%05d" % number): (b"v" * (number % 300), 0) for number in range(4000)}
ENTRIES |= {(b"other", b""): (b"x", NOW_MS + 3_600_000), (b"other", b"large"): (bytes(3_000_000), 0)}
NEIGHBOUR = {(b"default", b"not this one"): (b"n", 0)}
DEEP = b'{"format":2,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
"""JSON that is nested deeper than Python goes."""


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
async def transfer(volume, tls_dir=""):
    """The transfer process's application on a free port; its URL, which has no scheme for TLS either."""
    given = {"STELE_DATA_DIR": str(volume), "STELE_TRANSFER_PORT": "0", "STELE_TLS_DIR": str(tls_dir)}
    app, acceptor = make_app(read(Settings, given))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await HttpSite(runner, acceptor, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def certify(folder, name, ca=None, *, cluster=CLUSTER, role=Role.MEMBER, days=30, trusted=()):
    """A folder with the certificate of a part of a cluster, as the kubelet mounts it."""
    made = (ca or shared_ca()).leaf(name, uris=[Holder(cluster, role, name).uri], days=days)
    bundle = b"".join(each.certificate for each in trusted) or made.trusted
    return Leaf(made.certificate, made.key, bundle).write(folder)


def own_headers(volume):
    """What a process of the pod shows, whose member has started."""
    pod_token.write(volume, "secret of the pod")
    return pod_token.headers("secret of the pod")


def set_level(volume, level, grace_expired=True):
    """What the member of the volume does with the level that a master sends."""
    draft = volume / "new-level"
    draft.write_bytes(encode_file(MemberSecurity(level, grace_expired)))
    draft.replace(volume / MEMBER_SECURITY)


def copy_tablet(url, staging, item=ITEM, *, session="s-1", token=TOKEN, progress=lambda more: None):
    """One tablet, as a slot with this item alone copies it."""
    made = []
    job = CopyJob(session, "m", "c", url, token, (item,))
    copy_tablets(job, job.items, staging=staging, progress=progress, finished=made.append)
    (manifest,) = made
    return manifest


def copy_now(*arguments, **named):
    """The same, in a thread."""
    return asyncio.to_thread(copy_tablet, *arguments, **named)
