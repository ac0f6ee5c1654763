"""Grows the volume claims of members when the spec asks for larger ones."""

from typing import Any

from stele.adapters.kubernetes.api import CLAIMS, Api
from stele.errors import BadInput, Refused
from stele.master.cache import Cache
from stele.model import TabletCluster
from stele.model.common import parse_quantity

Object = dict[str, Any]


class Volumes:
    """Claims of one cluster. A size that Kubernetes refused for a claim is not asked for again."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache
        self._refused: dict[str, tuple[str, str]] = {}

    async def grow(self, claim: Object | None, cluster: TabletCluster) -> None:
        """Request the size of the spec if the claim requests less; volumes never shrink.

        Kubernetes changes no claim before it has a volume.
        """
        size = cluster.spec.storage.size
        if claim is None or parse_quantity(_requested(claim)) >= parse_quantity(size):
            return
        name = claim["metadata"]["name"]
        if self._refused.get(name, ("", ""))[0] == size or claim.get("status", {}).get("phase") != "Bound":
            return
        spec = claim["spec"]
        resources = {**spec["resources"], "requests": {**spec["resources"]["requests"], "storage": size}}
        body = {**claim, "spec": {**spec, "resources": resources}}
        try:
            self._cache.put(CLAIMS, await self._api.replace(CLAIMS, claim["metadata"]["namespace"], body))
        except (BadInput, Refused) as error:
            self._refused[name] = size, error.text.partition("\n")[0]

    def cannot_grow(self, cluster: TabletCluster) -> dict[str, str]:
        """Return why claims do not get the size that the spec has now, by their names."""
        size = cluster.spec.storage.size
        return {name: text for name, (refused, text) in self._refused.items() if refused == size}


def _requested(claim: Object) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])
