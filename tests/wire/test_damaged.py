"""Bytes of other processes and of volumes: deep nesting and wrong text get the decoders' own errors."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stele.core.kv.two_phase import Intent, Mark, Outcome
from stele.errors import BadInput, Corrupt
from stele.member.replication.request import RequestKind
from stele.member.serving.forwarding import result_of
from stele.wire import two_phase
from stele.wire.copy.bulk import decode_loaded
from stele.wire.replies import BadRepliesError, decode_replies
from stele.wire.storage import keys
from stele.wire.storage.dedup import client_entry, decode_remembered
from stele.wire.storage.load_value import decode_load
from stele.wire.storage.log_record import HEAD_BYTES, batch_record, check_record, load_record, split_batch
from stele.wire.transaction import decode_transaction

NESTED = b"\x91" * 100_000


def longer(*fields: object) -> bytes:
    """An array of these fields, and of one of a later build, which is nested too deep."""
    return bytes((0x91 + len(fields),)) + b"".join(map(msgspec.msgpack.encode, fields)) + NESTED


def result(kind: RequestKind) -> Callable[[bytes], object]:
    request: Any = SimpleNamespace(kind=kind, commands=[[b"GET", b"k"]])
    return lambda body: result_of(request, body)


def message(kind: type[Any]) -> Callable[[bytes], object]:
    return lambda body: two_phase.decode_message(kind, body)


def entry(kind: type[Any]) -> Callable[[bytes], object]:
    return lambda body: two_phase.decode_entry(kind, body)


ID = ("m", 1, 1)
PART = (ID, 1, b"", [1, 2], [[], []])
DECODERS: dict[str, tuple[Callable[[bytes], object], type[Exception], bytes]] = {
    "transaction": (decode_transaction, BadInput, longer([], [])),
    "part": (message(two_phase.PartMessage), BadInput, longer(*PART)),
    "ask": (message(two_phase.AskMessage), BadInput, longer(ID, b"")),
    "end": (message(two_phase.EndMessage), BadInput, longer(ID, 1)),
    "id": (message(two_phase.IdMessage), BadInput, longer(ID)),
    "not UTF-8": (message(two_phase.IdMessage), BadInput, b"\x91\x93\xa1\xff\x01\x01"),
    "intent": (entry(Intent), Corrupt, NESTED),
    "outcome": (entry(Outcome), Corrupt, longer(1, [], b"")),
    "mark": (entry(Mark), Corrupt, longer(1, 1)),
    "remembered": (decode_remembered, Corrupt, longer(1, 1, b"")),
    "loads": (decode_loaded, Corrupt, b"\x91" + longer("a", 1, 1, 1)),
    "load": (decode_load, Corrupt, longer(1, 1, 1)),
    "batch": (split_batch, Corrupt, b"\x91" + longer(b"", b"k", None, 0)),
    "replies": (decode_replies, BadRepliesError, NESTED),
    **{kind.name: (result(kind), Corrupt, longer([b"k"], None)) for kind in RequestKind},
}


@pytest.mark.parametrize(("decode", "error", "body"), DECODERS.values(), ids=DECODERS)
def test_bytes_of_others_get_the_decoders_own_error(
    decode: Callable[[bytes], object], error: type[Exception], body: bytes
) -> None:
    with pytest.raises(error):
        decode(body)


@pytest.mark.parametrize("key", [b"\x81\x80\x01", b"\x91\x81\x91\x80\x01"], ids=["a map", "a list of a map"])
def test_replies_with_such_keys_are_refused(key: bytes) -> None:
    with pytest.raises(BadRepliesError):
        decode_replies(key)


@pytest.mark.parametrize("size", range(keys.TABLET_PREFIX_BYTES + 1))
def test_a_data_key_that_is_cut_off_is_corrupt(size: int) -> None:
    with pytest.raises(Corrupt, match=f"data key of {size} bytes"):
        keys.split_user(keys.user_key(1, 1, b"", b"")[:size])


def test_a_stored_value_that_is_cut_off_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="stored value of 7 bytes; at least 8 were expected"):
        keys.unpack_value(b"1234567")
    with pytest.raises(Corrupt):
        client_entry(b"client", b"1234567")


def test_a_name_without_bytes_is_that_of_no_key() -> None:
    assert keys.split_tail(b"") == (b"", b"")


def test_records_that_no_build_writes_are_refused() -> None:
    batch = bytearray(batch_record(3, []))
    batch[HEAD_BYTES - 1] = 1
    with pytest.raises(Corrupt, match="batch with keyspace 0 and key 1 bytes"):
        check_record(bytes(batch))
    with pytest.raises(Corrupt, match="bulk load"):
        check_record(load_record(3, b"\xff", b"load-1", b"\x93\x01\x02\x03"))
