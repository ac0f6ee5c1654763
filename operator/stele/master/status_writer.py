"""Statuses are written by compare-and-set, too: a master that was deposed and does not know it overwrites
nothing that its successor says.
"""

from collections.abc import Mapping
from typing import Any

from stele.adapters.kubernetes.api import Api, Kind, NotFound
from stele.errors import Conflict
from stele.master.cache import Cache


async def patch_status(
    api: Api, cache: Cache, kind: Kind, stored: Mapping[str, Any], patch: Mapping[str, Any]
) -> None:
    """Merge into the status of an object that is still as `stored`, which `patch` was made from.

    Of an object that somebody changed since, the cache gets the present version and nothing is written: the
    next report is made from that.
    """
    meta = stored["metadata"]
    place = (kind, meta["namespace"], meta["name"])
    try:
        cache.put(kind, await api.patch_status(*place, patch, meta["resourceVersion"]))
    except NotFound:
        return
    except Conflict:
        newer = await api.find(*place)
        if newer is not None:
            cache.put(kind, newer)
