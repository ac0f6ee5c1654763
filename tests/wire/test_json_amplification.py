"""A body of JSON at ports 7001 and 7002, or an answer from there, takes so many times its size of memory.

Each list, tuple and dict of each message is made long, of the shortest things that it may have.
"""

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from stele.core.control.commands import ExchangeReply, ExchangeRequest, OpId, Row, SessionInfo, TabletReport
from stele.core.tablet.lifecycle import TabletState
from stele.errors import BadInput
from stele.transfer.bulk.routes import BuildOrder
from stele.wire.control import EXCHANGE_BYTES_MAX, REPLY_VALUES_MAX, decode_reply, reply_bytes_max
from stele.wire.copy.bulk import BulkTable, LoadList, LoadOrder, LoadPlace, SnapshotOrder
from stele.wire.copy.jobs import CopyJob, CopyJobStatus, SentSessions
from stele.wire.unreadable import UNREADABLE

FACTOR = 32
"""Bytes of memory for each byte of a body: a result without any field, which is `{}`, takes most."""

SPARE_BYTES = 64 * 1024
ITEMS = 5_000

MESSAGES = (
    *(ExchangeRequest, ExchangeReply),
    *(LoadOrder, SnapshotOrder, SessionInfo, BulkTable, LoadList, LoadPlace),
    *(CopyJob, CopyJobStatus, SentSessions, BuildOrder),
)
SHORT = {
    inspect.IntType: "1",
    inspect.FloatType: "1",
    inspect.BytesType: '""',
    inspect.BoolType: "true",
    inspect.NoneType: "null",
    inspect.ListType: "[]",
    inspect.VarTupleType: "[]",
    inspect.SetType: "[]",
    inspect.FrozenSetType: "[]",
    inspect.DictType: "{}",
}


def choices(kind: Any) -> list[Any]:
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def short(kind: Any) -> str:
    """The shortest JSON of a type."""
    kind = min(choices(kind), key=lambda each: not isinstance(each, inspect.NoneType))
    if isinstance(kind, inspect.EnumType):
        return msgspec.json.encode(next(iter(kind.cls))).decode()
    if isinstance(kind, inspect.LiteralType):
        return msgspec.json.encode(kind.values[0]).decode()
    if isinstance(kind, inspect.TupleType):
        return f"[{','.join(map(short, kind.item_types))}]"
    if isinstance(kind, inspect.StrType):
        return '"' + "a" * (kind.min_length or 0) + '"'
    return struct(kind, {}) if isinstance(kind, inspect.StructType) else SHORT[type(kind)]


def struct(kind: inspect.StructType, given: dict[str, str]) -> str:
    """One with these fields, and the others that it needs."""
    tag = [] if kind.tag is None else [(str(kind.tag_field), msgspec.json.encode(kind.tag).decode())]
    if kind.array_like:
        last = max(
            (i for i, each in enumerate(kind.fields) if each.required or each.name in given), default=-1
        )
        fields = [given.get(each.name) or short(each.type) for each in kind.fields[: last + 1]]
        return f"[{','.join([value for _, value in tag] + fields)}]"
    named = [
        (each.encode_name, given.get(each.name) or short(each.type))
        for each in kind.fields
        if each.required or each.name in given
    ]
    return "{" + ",".join(f'"{name}":{value}' for name, value in tag + named) + "}"


def long(kind: Any) -> Iterator[str]:
    """This type, with one of the lists in it long."""
    for each in choices(kind):
        if isinstance(each, inspect.StructType):
            for field in each.fields:
                yield from (struct(each, {field.name: value}) for value in long(field.type))
        elif isinstance(each, inspect.DictType):
            yield "{" + ",".join(f'"{n}":{short(each.value_type)}' for n in range(ITEMS)) + "}"
            yield from (f'{{"1":{value}}}' for value in long(each.value_type))
        elif isinstance(each, inspect.TupleType):
            for place, item in enumerate(each.item_types):
                before = [f"{short(other)}," for other in each.item_types[:place]]
                after = [f",{short(other)}" for other in each.item_types[place + 1 :]]
                yield from (f"[{''.join(before)}{value}{''.join(after)}]" for value in long(item))
        elif hasattr(each, "item_type"):
            for item in choices(each.item_type):
                yield f"[{','.join([short(item)] * ITEMS)}]"
            yield from (f"[{value}]" for value in long(each.item_type))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_no_list_takes_much_more_memory_than_its_json(message: type) -> None:
    decoder = msgspec.json.Decoder(message)
    read = 0
    for text in long(inspect.type_info(message)):
        body = text.encode()
        tracemalloc.start()
        try:
            with suppress(*UNREADABLE):
                decoder.decode(body)
                read += 1
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= FACTOR * len(body) + SPARE_BYTES, (text[:200], peak, len(body))
    assert read, "what is measured are messages"


REPLY = ExchangeReply("OK", "", "uuid-0", "c", 1, 1, 0, 1)


def test_a_reply_of_very_many_values_is_refused_before_they_are_made() -> None:
    short, many = msgspec.json.encode(REPLY), b"{}," * 2_000_000 + b"{}"
    body = short.replace(b'"results":[]', b'"results":[%b]' % many)
    assert len(short) < len(body) < EXCHANGE_BYTES_MAX
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=f"has more than {REPLY_VALUES_MAX} values"):
            decode_reply(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def unlimited(kind: Any, path: str) -> Iterator[str]:
    """Paths of texts and lists of any length in a type."""
    for each in choices(kind):
        if isinstance(each, inspect.StructType):
            for field in each.fields:
                yield from unlimited(field.type, f"{path}.{field.name}")
        elif isinstance(each, (inspect.StrType, inspect.BytesType)):
            yield from [path] * (each.max_length is None)
        elif isinstance(each, inspect.VarTupleType | inspect.ListType | inspect.DictType):
            yield from [path] * (each.max_length is None)
            item = each.value_type if isinstance(each, inspect.DictType) else each.item_type
            yield from unlimited(item, f"{path}[]")


def test_each_text_and_list_of_a_reply_has_a_greatest_length() -> None:
    """The operator keeps the last reply of each member."""
    assert list(unlimited(inspect.type_info(ExchangeReply), "reply")) == []
    assert "request.cluster" in unlimited(inspect.type_info(ExchangeRequest), "request")


def test_a_member_may_report_a_table_of_four_groups_of_the_largest_size() -> None:
    partitions, last = 4 * 16_384, OpId(2**31 - 1, 10**12)
    tablet = TabletReport(partitions - 1, TabletState.READY, 9, last, last, 2**31 - 1, 10**9, 10**6)
    row = Row(partitions - 1, 2**31 - 1, (999,) * 7)
    told = msgspec.structs.replace(
        REPLY, tablets=(tablet,) * partitions, rows=(row,) * partitions, accepted=(row,) * partitions
    )
    body = msgspec.json.encode(told)
    assert decode_reply(body) == told
    asked = ExchangeRequest(1, "c", 1, "uuid-0", partitions=partitions)
    assert len(body) < reply_bytes_max(asked)
