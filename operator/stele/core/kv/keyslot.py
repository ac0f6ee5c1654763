"""Maps keys to slots and partitions, in the same way at every member and in every client.

Slots are those of Redis Cluster (CRC16/XMODEM of the key or of its {hashtag}), so that cluster-aware clients
can route by themselves (Redis Cluster specification, "Key distribution model").
"""

from binascii import crc_hqx

from stele.native import compiled

SLOTS = 16384


def hashed_part(key: bytes) -> bytes:
    """Return the bytes to hash: those between the first `{` and the next `}` if there are any, else the
    key."""
    begin = key.find(b"{")
    if begin < 0:
        return key
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if end > begin + 1 else key


def slot_of(key: bytes) -> int:
    """Return the slot, 0 to 16383. `crc_hqx` with 0 is CRC16/XMODEM, in C."""
    return crc_hqx(hashed_part(key), 0) % SLOTS


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key outside of groups, 0 to partitions - 1.

    Up to 16384 partitions each hold at least one slot.
    """
    return slot_of(key) * partitions // SLOTS


def partition_in(group: range, slot: int) -> int:
    """Return which of the partitions of a keyspace has a slot."""
    return group.start + slot * len(group) // SLOTS


def partitions_of(keys: list[bytes], group: range) -> list[int]:
    """Return which of the partitions of a keyspace has each key, for many keys at once."""
    if compiled is not None:
        return compiled.partitions_of(keys, group.start, len(group))
    return partitions_plainly(keys, group)


def partitions_plainly(keys: list[bytes], group: range) -> list[int]:
    first, partitions = group.start, len(group)
    return [
        first + (slot_of(key) if b"{" in key else crc_hqx(key, 0) % SLOTS) * partitions // SLOTS
        for key in keys
    ]
