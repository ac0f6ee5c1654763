"""The format of messages between members: it is raised whenever what travels changes its shape."""

import hashlib
import typing

import msgspec

from stele.core.tablet.follower import Code
from stele.wire import peer
from stele.wire.storage import load_value, log_record

SHAPE = {4: "48e99dc03781f8ee"}
"""What travels in each format: a member of another build must be able to tell."""


def shape() -> str:
    """A digest of tags, fields and types, of the codes of answers and the kinds of logged operations."""
    told: list[object] = [
        (
            kind.__name__,
            kind.__struct_config__.tag,
            [(f.name, str(f.type)) for f in msgspec.structs.fields(kind)],
        )
        for kind in (
            *typing.get_args(peer.Message),
            peer.AppendItem,
            peer.AckItem,
            peer.ProbeItem,
            peer.ProbeResultItem,
        )
    ]
    told += [(code.name, int(code)) for code in Code]
    kinds = (log_record.NOOP, log_record.PUT, log_record.DELETE, log_record.BATCH, log_record.LOAD)
    told.append((*kinds, log_record.HEAD_BYTES))
    told += [str(msgspec.structs.fields(kind)) for kind in (log_record.Change, load_value.LoadValue)]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def test_what_travels_is_that_of_the_format() -> None:
    assert {peer.PEER_FORMAT: shape()} == SHAPE, "raise PEER_FORMAT, then note the new shape here"
