"""See the functions in plain Python that use these."""

from collections.abc import Callable
from typing import Any

def split(data: bytes, requests: list[list[bytes]]) -> int: ...
def encode_replies(replies: list[Any], ok: object, resp3: bool) -> bytes | None: ...
def partitions_of(keys: list[bytes], first: int, count: int) -> list[int]: ...
def gets(
    requests: list[list[bytes]], most: int, first: int, count: int
) -> tuple[list[bytes], list[int]] | None: ...
def one_get(data: bytes, first: int, count: int) -> tuple[bytes, int] | None: ...
def put_record(term: int, keyspace: bytes, key: bytes, value: bytes, expire_at_ms: int) -> bytes: ...
def split_record(record: bytes) -> tuple[int, bytes, bytes, bytes, int]: ...
def split_put(record: bytes) -> tuple[bytes, bytes]: ...
def read_now(
    replicas: dict[int, Any],
    keyspace: bytes,
    partitions: list[int],
    keys: list[bytes],
    serving: object,
    leased: Callable[[Any, Any], bool],
    engine: object,
    now_ms: int,
    room: int,
) -> tuple[list[Any], int] | None: ...
def apply_puts(
    records: dict[int, bytes],
    index: int,
    last: int,
    head: bytes,
    fresh: dict[bytes, bytes | None],
    totals: dict[bytes, tuple[int, int]],
    engine: object,
    changes: list[tuple[int, bytes]] | None,
    bytes_max: int,
) -> tuple[int, int]: ...
