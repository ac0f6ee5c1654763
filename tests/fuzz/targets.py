"""What reads bytes of others: each decoder with samples, and the errors that it may raise."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import msgspec
import yaml
from aiohttp import web
from crc32c import crc32c

from e2e.cluster.control_plane import REPOSITORY
from stele.adapters.http import bears
from stele.adapters.pki import certificates
from stele.adapters.rpc.connection import Connection
from stele.client.members import parse_addresses
from stele.copyjob import messages
from stele.core.kv.two_phase import Intent, Mark, Outcome, TxId
from stele.core.security.identity import parse_uri
from stele.errors import Corrupt, SteleError
from stele.member.admin.http import _number
from stele.member.bulk import routes as bulk_routes
from stele.member.control.planned_stop import StoppingRequest
from stele.member.replication.operations import entries_of
from stele.member.replication.request import RequestKind
from stele.member.serving.forwarding import result_of
from stele.model import Keyspace, TabletCluster, TabletMember, TabletRebalance, TabletUser
from stele.transfer.bulk.files import _checked
from stele.transfer.bulk.routes import _load, _partition
from stele.transfer.jobs.child import CopyEnded, CopyProgress
from stele.wire import configmap, control, keyspaces, peer, replies, resp, two_phase, user_certificates, users
from stele.wire.copy import blocks, bulk, fragments, jobs
from stele.wire.frames import HEAD_BYTES, encode_frame
from stele.wire.storage import dedup, keys, load_value, log_record, volume
from stele.wire.transaction import Transaction, decode_transaction, encode_transaction
from stele.wire.unreadable import UNREADABLE
from stele.wire.urls import host_and_port, is_host
from tests.fuzz import http_streams
from tests.fuzz.driver import Target
from tests.fuzz.mutate import JSON, MSGPACK, behind
from tests.fuzz.samples import encoded, trees

PIECES_MAX = 64
SECONDS_OF_2026 = 1.77e9


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut data as a network may: the same data always in the same way."""
    size = max((1, 2, 3, 7, 16, 64, 1_000)[crc32(data) % 7], len(data) // PIECES_MAX)
    return (data[at : at + size] for at in range(0, len(data), size))


def each_of(*decoders: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Return a decoder that chooses one by the first byte."""

    def run(data: bytes) -> None:
        if data:
            decoders[data[0] % len(decoders)](data[1:])

    return run


def chosen(codec: Any, kinds: Sequence[Any]) -> list[bytes]:
    """Return samples for `each_of`, the decoder of each kind at its place."""
    return [sample for at, kind in enumerate(kinds) for sample in encoded(codec, kind, prefix=bytes((at,)))]


# -- RESP

GUEST = (10, 16 * 1024)
REQUESTS = [
    resp.encode_request([b"SET", b"key", b"value", b"EX", b"10"]),
    resp.encode_request([b"GET", b"key"]) * 5,
    resp.encode_request([b"MSET", *(b"k\r\n%d" % n for n in range(20))]),
    resp.encode_request([b"HELLO", b"3", b"AUTH", b"default", b"secret"]) + b"PING\r\n",
    resp.encode_request([b"AUTH", b"x"]) + resp.encode_request([b"SET", b"a", b"x" * 5_000]),
    b'SET "a b" \'it\\\'s\' "\\x00\\n"\r\nPING\r\n\r\nget a\n',
    b"*0\r\n*-1\r\n*1\r\n$0\r\n\r\n",
]


def read_requests(
    parts: Iterator[bytes], limited: bool, split: resp.Split | None = None
) -> tuple[list[list[bytes]], str | None]:
    """Return all requests of a connection, and the error with which it ended."""
    reader, found = resp.RequestReader(split), list[list[bytes]]()
    if limited:
        reader.limit(*GUEST)
    for part in parts:
        found += reader.feed(part)
        while reader.stopped and reader.error is None:
            found += reader.go_on()
        assert reader.buffered_bytes <= resp.REQUEST_BYTES_MAX + resp.ARGUMENT_BYTES * resp.ARGUMENTS_MAX
    return found, reader.error


def requests(data: bytes) -> None:
    """However a network cuts them, and whether compiled or not, requests are the same."""
    limited = crc32(data) % 4 == 0
    found, error = read_requests(pieces(data), limited)
    assert (found, error is None) == whole(data, limited)
    assert (found, error) == read_requests(pieces(data), limited, resp.split_plainly)


def whole(data: bytes, limited: bool) -> tuple[list[list[bytes]], bool]:
    found, error = read_requests(iter((data,)), limited)
    return found, error is None


# -- frames and messages of members


class Peer:
    """A connection's handler and transport: takes greetings, and all that follows them."""

    def __init__(self) -> None:
        self.connection = Connection(self)
        self.is_closed = False
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def set_write_buffer_limits(self, _high: int, _low: int) -> None: ...
    def get_extra_info(self, _name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def opened(self, connection: Connection) -> None: ...
    def drained(self, connection: Connection) -> None: ...
    def closed(self, connection: Connection, reason: str) -> None: ...

    def received(self, connection: Connection, message: peer.Message) -> None:
        assert not self.is_closed
        connection.greeted()


def frames(data: bytes) -> None:
    """Until the greeting, what is kept is short."""
    end = Peer()
    for piece in pieces(data):
        end.connection.data_received(piece)


HELLO = msgspec.msgpack.encode(
    peer.Hello(peer.GREETING_FORMAT, "c", 1, "uuid-1", "uuid-0", peer.FormatRange(1, 2), 5)
)


def framed(body: bytes, rng: Random) -> bytes:
    """Put what was made behind a greeting, into a frame, or into a broken one."""
    frame = encode_frame(body)
    how = rng.random()
    if how < 0.5:
        return encode_frame(HELLO) + frame * rng.choice((1, 1, 3))
    if how < 0.7:
        return frame
    if how < 0.9:
        whole = bytearray(encode_frame(HELLO) + frame)
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        return bytes(whole)
    length = rng.choice((0, 1, 4_096, 4_097, 2**24, 2**24 + 1, 2**31, 2**32 - 1))
    return length.to_bytes(4, "big") + frame[4:HEAD_BYTES] + body


def messages_of_members(data: bytes) -> None:
    found = peer.decode_message(data)
    assert peer.decode_message(peer.encode_message(found)) is not None
    with suppress(peer.MessageError):
        peer.decode_greeting(data)


REPLIES = [
    replies.encode_replies([None, 5, b"value", [b"a", [b"b"]], [], replies.Simple("OK")]),
    replies.encode_replies([replies.Failure("ERR", "no")] * 3),
    msgspec.msgpack.encode(([b"a", b"b"], b"b")),
    msgspec.msgpack.encode(77),
    replies.encode_replies([two_phase.answer(two_phase.Status.PREPARED, [b"x"])]),
    replies.encode_replies([[] for _ in range(100)]),
]
"""The last one is what takes most memory for its size: an empty list is a byte."""


def answers(data: bytes) -> None:
    for kind in RequestKind:
        with suppress(SteleError):
            result_of(SimpleNamespace(kind=kind, commands=range(10)), data)  # type: ignore[arg-type]
    for reply in replies.decode_replies(data):
        with suppress(SteleError):
            two_phase.split_answer(reply)


PARTS = (two_phase.PartMessage, two_phase.AskMessage, two_phase.EndMessage, two_phase.IdMessage)
ENTRIES = (Intent, Outcome, Mark)
ID = two_phase.id_key(TxId("member-uuid", 3, 77))
TRANSACTIONS = (
    *((lambda body, kind=kind: two_phase.decode_message(kind, body)) for kind in PARTS),
    *((lambda body, kind=kind: two_phase.decode_entry(kind, body)) for kind in ENTRIES),
    decode_transaction,
    two_phase.split_id,
    lambda body: two_phase.parse_id(body.decode("utf-8", "surrogateescape")),
)


def transactions() -> list[bytes]:
    told = encode_transaction([], [[b"SET", b"k", b"v"], [b"GET", b"k"]])
    plain = [b"\x07" + told, b"\x08" + ID, b"\x09" + b"member-uuid.3.77"]
    return [*chosen(MSGPACK, (*PARTS, *ENTRIES, Transaction)), *plain]


# -- HTTP


def job_bodies(kind: Any) -> Callable[[bytes], object]:
    return msgspec.json.Decoder(kind).decode


BODIES = (
    *(jobs.CopyJob, jobs.CopyJobStatus, jobs.SentSessions, messages.SliceProgress, messages.SliceResult),
    *(bulk.BuildOrder, bulk.LoadManifest, bulk.LoadPlace, bulk.BulkTable, StoppingRequest),
    *(CopyProgress, CopyEnded, bulk.LoadOrder, bulk.SnapshotOrder),
)
BODY_DECODERS = (
    *map(job_bodies, BODIES[:-2]),
    *((lambda body, kind=kind: bulk_routes._decoded(kind, body)) for kind in BODIES[-2:]),
)


class Request:
    """The parts of a request that handlers read as text."""

    def __init__(self, text: str) -> None:
        self.match_info = self.query = dict.fromkeys(("partition", "load", "session", "after"), text)
        self.headers = {"Authorization": text}


def http_texts(data: bytes) -> None:
    """Paths, queries and headers, as aiohttp hands them out."""
    text = data.decode("utf-8", "surrogateescape")
    request: Any = Request(text)
    assert not bears(request, "a token that no sample has")
    for read in (
        lambda: _number(request.query, "after", -1),
        lambda: _partition(request),
        lambda: _load(request),
        lambda: bulk_routes._session(request),
        lambda: bulk.check_load_id(text),
        lambda: fragments.read_place(text),
        lambda: two_phase.parse_id(text),
        lambda: parse_addresses(text),
        lambda: host_and_port(text),
        lambda: is_host(text),
        lambda: parse_uri(text),
    ):
        with suppress(SteleError, web.HTTPBadRequest):
            read()


TEXTS = [
    *(b"7", b"export-7f3a", b"load-1", b"3.6b6579", b"Bearer secret", b"member-uuid.3.77", b"10.0.0.1:7001"),
    *(b"http://[fe80::1]:7010/", b"demo-0.demo-members.shop.svc:7001,demo-1", b"stele://u/member/demo-0"),
]


# -- ConfigMaps


def config_maps() -> list[bytes]:
    from tests.wire.test_keyspaces import CATALOG
    from tests.wire.test_table_text import HEAD, ROWS

    groups = configmap.PartitionGroups(4, (configmap.PartitionGroup("shop", 3, 2, 2),))
    newer = configmap.Head(
        *(7, "Active", 3, 2, 12, 3, -4, 9, HEAD.members, configmap.SPOKEN.most, groups),
        configmap.InternalTls.DIAL,
    )
    stored = (*map(configmap.encode_head, (HEAD, newer)), configmap.encode_shard(7, 0, ROWS))
    return [MSGPACK.encode(each) for each in (*stored, keyspaces.encode_catalog(CATALOG))]


_config_map = msgspec.msgpack.Decoder(dict[str, str]).decode


def config_map(data: bytes) -> None:
    """Data as the API server has it, where keys and values are text. What was read can be written again."""
    try:
        found = _config_map(data)
    except UNREADABLE:
        return
    with suppress(Corrupt):
        configmap.encode_head(configmap.decode_head(found))
    with suppress(Corrupt):
        shard = configmap.decode_shard(found, 0, 3)
        configmap.encode_shard(shard.epoch, 0, shard.rows)
    with suppress(Corrupt):
        keyspaces.encode_catalog(keyspaces.decode_catalog(found))


# -- files


def volume_files() -> list[bytes]:
    """Bodies of files, each behind the number of its kind."""
    kinds = (*volume._TITLES, volume.DataState)
    return [
        bytes((at,)) + msgspec.msgpack.encode(each) for at, kind in enumerate(kinds) for each in trees(kind)
    ]


def sealed_file(data: bytes, rng: Random) -> bytes:
    """Put a body into its file, mostly with a right checksum."""
    kinds = tuple(volume._TITLES)
    at, body = (data[0], data[1:]) if data else (0, b"")
    if at == len(kinds):
        return body
    kind = kinds[at % len(kinds)]
    checksum = volume._checksum(kind, body) if rng.random() < 0.95 else rng.randbytes(4)
    return volume._TITLES[kind] + checksum + body


def volume_file(data: bytes) -> None:
    for kind, title in volume._TITLES.items():
        if data.startswith(title[:-2]):
            with suppress(SteleError):
                volume.decode_file(kind, data, "file")  # type: ignore[type-var]
    for read in (volume.decode_state, lambda content: volume.decode_table(content, "table")):
        with suppress(SteleError):
            read(data)


COPIED = (jobs.SessionFile, jobs.Line, jobs.Manifest, bulk.PieceIndex)
COPY_FILES = (
    *map(job_bodies, COPIED[:2]),
    lambda content: jobs.decode_manifest(content, "m"),
    bulk.decode_index,
    lambda content: bulk.index_bytes(content[: bulk.HEAD_BYTES]),
)


def copied_files() -> list[bytes]:
    files = chosen(JSON, COPIED)
    parts = [
        jobs.Fragment("0", "1", {"a": (1, 2)}, 3, 30, "f", 9, 7),
        jobs.Fragment("1", "", {}, 0, 0, "", 0, 0),
    ]
    manifest = jobs.Manifest(jobs.MANIFEST_FORMAT, "s", 7, 1, 2, jobs.OpId(3, 9), tuple(parts))
    sections = [bulk.Section(1, 0, 30), bulk.Section(4, 30, 12)]
    head = bulk.piece_head(sections, 77)
    return [
        *files,
        b"\x02" + msgspec.json.encode(manifest),
        b"\x03" + head[bulk.HEAD_BYTES :],
        b"\x04" + head,
    ]


STREAM = [(b"key-%04d" % n, keys.pack_value(b"value" * (n % 7), 0)) for n in range(40)]


def streams() -> list[bytes]:
    """Bodies of blocks."""
    end = lambda count, size: blocks.End(7, 0, jobs.OpId(), count, size)  # noqa: E731
    found = [block for some in (STREAM, STREAM[:1], []) for block in blocks.encode_stream(some, end)]
    return [bytes(block)[8:] for block in (*found, blocks.encode_end(end(1, 9)))]


def blocks_of(data: bytes, rng: Random) -> bytes:
    """Put a body into a block, behind a right one or alone."""
    checksum = crc32c(data) if rng.random() < 0.95 else rng.randrange(2**32)
    block = len(data).to_bytes(4, "big") + checksum.to_bytes(4, "big") + data
    return bytes(blocks.encode_entries([b"a"], [b"12345678"])) + block if rng.random() < 0.5 else block


def stream(data: bytes) -> None:
    """Entries of a copy, and those of a bulk load."""
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    rows = list[blocks.Entry]()
    with suppress(Corrupt):
        for columns in blocks.BlockReader(read):
            rows += zip(*columns, strict=True)
    for _ in _checked(iter(rows), 0, range(1)):
        pass


# -- the log and the data of a tablet

RECORDS = [
    log_record.put_record(3, b"shop", b"key", b"value", 0),
    log_record.delete_record(3, b"shop", b"key"),
    log_record.noop_record(3),
    log_record.clear_record(3, b"shop"),
    log_record.batch_record(
        3, [log_record.Change(b"shop", b"k", b"v"), log_record.Change(b"@x", b"k", None, 9)]
    ),
    log_record.load_record(3, b"shop", b"load-1", msgspec.msgpack.encode(load_value.LoadValue(1, 2, 3))),
]


def log_records(data: bytes) -> None:
    """What passes the check of a follower can be applied."""
    log_record.check_record(data)
    kind = log_record.split_record(data)[0]
    for data_key, stored in entries_of(data):
        keys.split_tail(data_key)
        assert stored is None or len(keys.unpack_value(stored)) == 2
    if kind == log_record.BATCH:
        log_record.split_batch_record(data)
    elif kind in (log_record.PUT, log_record.DELETE):
        log_record.entry_of(data)
    elif kind == log_record.LOAD:
        load_value.decode_load(log_record.split_record(data)[3])
        assert log_record.split_record(data)[2].decode()


DATA_ENTRIES = (
    keys.split_user,
    keys.unpack_value,
    keys.split_tail,
    dedup.decode_remembered,
    bulk.decode_loaded,
    load_value.decode_load,
    volume.decode_state,
    lambda stored: dedup.client_entry(b"client", stored),
)


def data_entries() -> list[bytes]:
    remembered = dedup.encode_remembered(dedup.Remembered(3, 9, b"\x90"))
    plain = [
        b"\x00" + keys.user_key(7, 1, b"shop", b"key"),
        b"\x00" + keys.meta_key(7, 1, b"applied"),
        b"\x01" + keys.pack_value(b"value", 5),
        b"\x02" + keys.user_tail(b"shop", b"key"),
        b"\x03" + remembered,
        b"\x04" + bulk.encode_packed([bulk.Loaded("load-1", 9, 3, 7)]),
        b"\x05" + msgspec.msgpack.encode(load_value.LoadValue(1, 2, 3)),
        b"\x07" + keys.pack_value(remembered, 0),
    ]
    return [*plain, *(b"\x06" + msgspec.msgpack.encode(each) for each in trees(volume.DataState))]


# -- users, custom resources, certificates


def users_files() -> list[bytes]:
    scrypt = f"scrypt:1024:8:1:{'ab' * 16}:{'0' * 64}"
    entries = [
        users.UserEntry("default", (users.generated_hash(b"x"), scrypt), ("+@all", "~*", "&*")),
        users.UserEntry("shop", (), ("+@read", "-@dangerous", "~a:*", "%R~b"), ("shop",), False, 7, 10**6),
    ]
    pairs = [("shop", "uri:spiffe://example.com/shop"), ("till", "cn:till")]
    files = [users.encode_users(entries), users.encode_users(entries[:1]), users.encode_users([])]
    certificates = [user_certificates.encode_certificates(found) for found in (pairs, pairs[:1])]
    return [*(b"\x00" + each for each in files), *(b"\x01" + each for each in certificates)]


def users_file(data: bytes) -> None:
    for entry in users.decode_users(data):
        entry.rights()
        for password in entry.passwords:
            users.read_hash(password)


def certificates_file(data: bytes) -> None:
    people = [users.UserEntry(name, (), ()) for name in ("shop", "till")]
    users.decode_users(users.encode_users(people), data)


KINDS = {each.KIND: each for each in (TabletCluster, TabletMember, TabletRebalance, Keyspace, TabletUser)}


def resources() -> list[bytes]:
    examples = sorted((REPOSITORY / "examples").glob("*.yaml"))
    found = [each for path in examples for each in yaml.safe_load_all(path.read_text())]
    member = {"kind": "TabletMember", "metadata": {"name": "demo-0", "namespace": "shop"}}
    found.append({**member, "spec": {"cluster": "demo", "index": 0}, "status": {"uuid": "u"}})
    return [json.dumps(each).encode() for each in found if each.get("kind") in KINDS]


def resource(data: bytes) -> None:
    """An object as the API server stores it: a model, or what is wrong with it."""
    try:
        stored = JSON.decode(data)
    except UNREADABLE:
        return
    kind = KINDS.get(str(stored.get("kind")) if isinstance(stored, dict) else "", TabletCluster)
    assert str(kind.read(stored))


def pems() -> list[bytes]:
    authority = certificates.make_authority("demo", SECONDS_OF_2026, 10)
    names = certificates.Names("demo-0", ("stele://u/member/demo-0",), ("demo", "10.0.0.1", "fe80::1"))
    leaf = certificates.sign_leaf(authority, names, SECONDS_OF_2026, 5)
    return [authority.certificate, leaf.certificate + authority.certificate, leaf.key, leaf.certificate]


AUTHORITY = certificates.make_authority("demo", SECONDS_OF_2026, 10)


def pem(data: bytes) -> None:
    """A certificate, key or bundle of a Secret."""
    certificates.still_valid(data, SECONDS_OF_2026)
    for read in (
        lambda: certificates.read_certificate(data),
        lambda: certificates.is_signed_by(data, AUTHORITY.certificate),
        lambda: certificates.check_pair(certificates.Pair(AUTHORITY.certificate, data)),
    ):
        with suppress(SteleError):
            read()


def der(data: bytes, rng: Random) -> bytes:
    """Change what is inside of the armour."""
    if rng.random() < 0.4 or b"-----\n" not in data:
        return data
    begin, _, rest = data.partition(b"-----\n")
    inner, dash, end = rest.partition(b"-----END")
    with suppress(ValueError):
        changed = bytearray(base64.b64decode(inner))
        for _ in range(rng.choice((1, 1, 2, 5)) if changed else 0):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        lines = base64.encodebytes(bytes(changed))
        return begin + b"-----\n" + lines + dash + end
    return data


STREAMS = ("http-streams", "bulk-streams")


def stream_target(name: str, run: Callable[[bytes], None], samples: Callable[[], list[bytes]]) -> Target:
    """Return the target of a whole HTTP server."""
    spare, tokens = http_streams.MEMORY_SPARE, http_streams.TOKENS
    return Target(name, run, samples, (), tokens=tokens, memory_spare=spare)


RESP_TOKENS = (
    b"*1\r\n",
    b"$3\r\n",
    b"*-1\r\n",
    b"$-1\r\n",
    b'"',
    b"\\x",
    b"AUTH",
    b"*131073\r\n",
    b"$0\r\n\r\n",
)
OF_MEMBERS = lambda: encoded(MSGPACK, peer.Message)  # noqa: E731
NOT_JSON = (SteleError, *UNREADABLE)
TARGETS = {
    each.name: each
    for each in (
        # A line of two bytes is a request, which is a list; those of three ways of reading are kept.
        Target("resp", requests, lambda: REQUESTS, (), tokens=RESP_TOKENS, memory_factor=240),
        Target("frames", frames, OF_MEMBERS, (), MSGPACK, seal=framed),
        Target("messages", messages_of_members, OF_MEMBERS, (peer.MessageError,), MSGPACK),
        Target("answers", answers, lambda: REPLIES, (replies.BadRepliesError,), MSGPACK, memory_factor=160),
        Target("transactions", each_of(*TRANSACTIONS), transactions, codec=behind(MSGPACK)),
        Target(
            "exchange", control.decode_request, lambda: encoded(JSON, control.ExchangeRequest), codec=JSON
        ),
        Target("reports", control.decode_reply, lambda: encoded(JSON, control.ExchangeReply), codec=JSON),
        Target("http-bodies", each_of(*BODY_DECODERS), lambda: chosen(JSON, BODIES), NOT_JSON, behind(JSON)),
        Target("http-texts", http_texts, lambda: TEXTS, ()),
        stream_target("http-streams", http_streams.transfer_stream, http_streams.transfer_requests),
        stream_target("bulk-streams", http_streams.bulk_stream, http_streams.bulk_requests),
        Target("config-maps", config_map, config_maps, (), MSGPACK),
        Target("volume-files", volume_file, volume_files, (), behind(MSGPACK), seal=sealed_file),
        Target("copy-files", each_of(*COPY_FILES), copied_files, NOT_JSON, behind(JSON)),
        Target("streams", stream, streams, seal=blocks_of),
        Target("log-records", log_records, lambda: RECORDS, tokens=MSGPACK.opens),
        Target("data-entries", each_of(*DATA_ENTRIES), data_entries, codec=behind(MSGPACK)),
        Target("users-file", each_of(users_file, certificates_file), users_files, codec=behind(JSON)),
        Target("resources", resource, resources, (), JSON),
        Target("certificates", pem, pems, (), tokens=(b"-----BEGIN ",), seal=der),
    )
}
"""In this order; those of `STREAMS` take a connection for each input, and are slow."""
