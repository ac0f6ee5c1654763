"""Where a key lives: key -> slot -> partition, the same at every member and in every client.

Slots are those of Redis Cluster (CRC16/XMODEM of the key or of its {hashtag}), so that its clients can
route by themselves (docs/design/requests.md).
"""

from binascii import crc_hqx
from collections.abc import Iterable

SLOTS = 16384


def hashed_part(key: bytes) -> bytes:
    """What is hashed: the bytes between the first `{` and the next `}` if there are any, else the key."""
    begin = key.find(b"{")
    if begin < 0:
        return key
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if end > begin + 1 else key


def slot_of(key: bytes) -> int:
    """Slot 0..16383. `crc_hqx` with 0 is CRC16/XMODEM, in C."""
    return crc_hqx(hashed_part(key), 0) % SLOTS


def partition_of(key: bytes, partitions: int) -> int:
    """Partition 0..partitions-1; `partitions` is 1..16384, each then holds at least one slot."""
    return slot_of(key) * partitions // SLOTS


def partitions_of(keys: Iterable[bytes], partitions: int) -> list[int]:
    """`partition_of` each key, for many keys at once."""
    return [
        partition_of(key, partitions) if b"{" in key else (crc_hqx(key, 0) % SLOTS) * partitions // SLOTS
        for key in keys
    ]
