"""Keeps the last specs of a cluster's members as ControllerRevisions, for `kubectl stele rollout undo`."""

from typing import Any

from stele.adapters.kubernetes.api import REVISIONS, AlreadyExists, Api
from stele.errors import SteleError
from stele.master import manifests
from stele.master.revision import revision_of
from stele.model import TabletCluster
from stele.model.ownership import CLUSTER_LABEL, belongs_to
from stele.model.rollout import FEATURES, Revision

REVISIONS_KEPT = 10
"""Maximum number of ControllerRevisions of one cluster."""

Object = dict[str, Any]


class RevisionHistory:
    """The history of one cluster. Each spec is written once, unless another one came in between."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._noted = ("", 0)

    async def note(self, cluster: TabletCluster) -> None:
        """Keep what the spec says about members, and delete the oldest revisions."""
        template = Revision.template_of(cluster.spec.to_dict())
        name = f"{cluster.metadata.name}-{revision_of(template)}"
        noted = name, cluster.status.features
        if noted == self._noted:
            return
        selector = f"{CLUSTER_LABEL}={cluster.metadata.name}"
        listed = await self._api.list(REVISIONS, cluster.metadata.namespace, selector)
        kept = sorted(
            (each for each in listed if belongs_to(each, cluster.metadata.uid)),
            key=lambda each: int(each["revision"]),
        )
        newest = int(kept[-1]["revision"]) if kept else 0
        if not kept or kept[-1]["metadata"]["name"] != name:
            await self._write(cluster, name, template, newest + 1, kept)
            for old in kept[: max(0, len(kept) + 1 - REVISIONS_KEPT)]:
                await self._api.delete(REVISIONS, *_place(old), old["metadata"]["uid"])
        else:
            await self._note_features(kept[-1], cluster.status.features)
        self._noted = noted

    async def _note_features(self, newest: Object, features: int) -> None:
        """Note features that rose while this revision is the present one."""
        meta = newest["metadata"]
        annotations = meta.get("annotations") or {}
        if int(annotations.get(FEATURES, 0)) < features:
            body = {**newest, "metadata": {**meta, "annotations": {**annotations, FEATURES: str(features)}}}
            await self._api.replace(REVISIONS, meta["namespace"], body)

    async def _write(
        self, cluster: TabletCluster, name: str, template: Object, number: int, kept: list[Object]
    ) -> None:
        """Write the newest revision; one that returns gets a new number."""
        before = next((each for each in kept if each["metadata"]["name"] == name), None)
        if before is not None:
            await self._api.replace(
                REVISIONS, before["metadata"]["namespace"], {**before, "revision": number}
            )
            return
        body = manifests.controller_revision(cluster, name, template, number)
        try:
            await self._api.create(REVISIONS, cluster.metadata.namespace, body)
        except AlreadyExists as error:
            raise SteleError(f"ControllerRevision {name} belongs to somebody else", "NAME_TAKEN") from error


def _place(stored: Object) -> tuple[str, str]:
    return stored["metadata"]["namespace"], stored["metadata"]["name"]
