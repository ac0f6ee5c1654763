"""FLUSHDB and FLUSHALL: clear a keyspace, or all of them, partition by partition.

Each partition is cleared by one operation of its log. There is none over all partitions: writes of others go
on meanwhile, and after an error some partitions are cleared. Repeating it is safe.
"""

import asyncio
from collections.abc import Sequence

from stele.errors import SteleError, Uncertain
from stele.ports.key_value_service import KeyValueService

FLUSH_PARTITIONS_AT_ONCE = 64
EVERY_KEYSPACE = b""


async def flush(
    store: KeyValueService, name: str, keyspace: bytes, partitions: Sequence[int], catalog: int = 0
) -> None:
    """Clear the keyspace in these partitions; `catalog` is as in `KeyValueService.clear`.

    Raises the first error once nothing is under way, an uncertain one before others, with the number of
    partitions that are cleared.
    """
    errors: list[SteleError] = []
    done = 0
    for begin in range(0, len(partitions), FLUSH_PARTITIONS_AT_ONCE):
        some = partitions[begin : begin + FLUSH_PARTITIONS_AT_ONCE]
        calls = (store.clear(partition, keyspace, catalog) for partition in some)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, SteleError):
                errors.append(outcome)
            elif outcome is not None:
                raise outcome
            else:
                done += 1
        if errors:
            worst = next((each for each in errors if isinstance(each, Uncertain)), errors[0])
            text = f"{name} cleared {done} of {len(partitions)} partitions; repeat it, for not all are: "
            raise type(worst)(text + worst.text, worst.code)
