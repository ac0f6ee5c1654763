"""The exchange: full and partial pushes come back as they were, everything else is refused with the field."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.control import commands as m
from stele.core.table.ids import VERSION_MAX
from stele.errors import BadInput
from stele.wire import control as wire

ROWS = (m.Row(0, 3, (0, 1)), m.Row(7, 0, ()), m.Row(65_535, VERSION_MAX, (2, None, 0)))
MEMBERS = (m.MemberInfo(0, "orders-0", "u-0", "10.1.2.3"), m.MemberInfo(2, "orders-2", "u-2", "", True))
PUSH = m.ExchangeRequest(1, "c", 4, "u-0", 0, 65_536, 2, "Active", 3, MEMBERS, ROWS, full=True)
REPLY = m.ExchangeReply(
    "OK",
    "",
    "u",
    "c",
    1,
    4,
    -5,
    3,
    rows=ROWS,
    tablets=(m.TabletReport(0, "READY", 1, m.OpId(), m.OpId(), 3, 9),),
)

rows = st.builds(
    m.Row,
    st.integers(0, 65_535),
    st.integers(0, VERSION_MAX),
    st.lists(st.none() | st.integers(0, m.INDEX_MAX), max_size=7).map(tuple),
)


@given(st.lists(rows, max_size=20), st.booleans())
def test_pushes_come_back_as_they_were(some: list[m.Row], full: bool) -> None:
    """`full` and only the rows that changed differ in that flag alone."""
    request = m.ExchangeRequest(1, "c", 4, "u", 0, 65_536, 2, rows=tuple(some), full=full)
    assert wire.decode_request(wire.encode(request)) == request
    assert wire.decode_reply(wire.encode(REPLY)) == REPLY


@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int) -> None:
    for good, decode in ((wire.encode(PUSH), wire.decode_request), (wire.encode(REPLY), wire.decode_reply)):
        for body in (noise, good[:at], good[:at] + noise + good[at + len(noise) :]):
            with suppress(BadInput):
                decode(body)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(PUSH.__struct_fields__), values)
def test_any_value_in_any_field_is_read_or_refused(field: str, value: object) -> None:
    with suppress(BadInput):
        wire.decode_request(json.dumps({**json.loads(wire.encode(PUSH)), field: value}).encode())


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("epoch", -1, r">= 0 - at `\$.epoch`"),
        ("epoch", 2**63, r"`\$.epoch`"),
        ("partitions", 65_537, r"<= 65536 - at `\$.partitions`"),
        ("replicas", 8, r"<= 7 - at `\$.replicas`"),
        ("self_index", -2, r">= -1 - at `\$.self_index`"),
        ("rows", [[0, VERSION_MAX + 1, []]], r"<= 2147483647 - at `\$.rows\[0\]\[1\]`"),
        ("rows", [[-1, 1, []]], r">= 0 - at `\$.rows\[0\]\[0\]`"),
        ("rows", [[0, 1, [-1]]], r">= 0 - at"),
        ("rows", [[0, 1, [0] * 8]], r"length <= 7"),
        ("commands", [{"type": "Dance"}], r"Invalid value 'Dance' - at `\$.commands\[0\].type`"),
    ],
)
def test_what_is_wrong_is_named(field: str, value: object, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        wire.decode_request(json.dumps({**json.loads(wire.encode(PUSH)), field: value}).encode())


def test_another_format_is_named_before_its_fields() -> None:
    body = json.dumps({"format": 9, "table": "something new"}).encode()
    with pytest.raises(BadInput, match="uses format 9, this member speaks formats 1 to 2") as refused:
        wire.decode_request(body)
    assert refused.value.code == "UNKNOWN_FORMAT"


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"x":' + b"[" * 100_000, b'{"code":"\xff"}', b"[]"])
def test_garbage_is_no_exchange(body: bytes) -> None:
    with pytest.raises(BadInput, match="invalid exchange:"):
        wire.decode_request(body)
    with pytest.raises(BadInput, match="invalid reply to an exchange"):
        wire.decode_reply(body)
