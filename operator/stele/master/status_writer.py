"""Writes statuses by compare-and-set, so that a deposed master does not overwrite its successor's."""

from collections.abc import Mapping
from typing import Any

from stele.adapters.kubernetes.api import Api, Kind, NotFound
from stele.errors import Conflict
from stele.master.cache import Cache
from stele.master.merge_patch import patch_of
from stele.model.common import Model


async def patch_status(
    api: Api, cache: Cache, kind: Kind, stored: Mapping[str, Any], patch: Mapping[str, Any]
) -> None:
    """Merge `patch` into the status of an object that has not changed since `stored`.

    If it has changed, nothing is written; the cache gets the present version, on which the next report is
    based.
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


async def show(api: Api, cache: Cache, kind: Kind, stored: Mapping[str, Any], status: Model) -> None:
    """Write a status that differs from the stored one."""
    patch = patch_of(stored.get("status") or {}, status.to_dict())
    if patch:
        await patch_status(api, cache, kind, stored, patch)
