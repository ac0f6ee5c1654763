"""Has kubelets put new files of Secrets into pods at once.

A kubelet looks at the Secrets that a pod mounts when the pod changes, and otherwise about once a minute
(https://kubernetes.io/docs/tasks/configure-pod-container/configure-pod-configmap/, "Mounted ConfigMaps are
updated automatically"). A user that is deleted must not stay for so long, and a change of the CA takes three
such files of each member, one after the other.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from stele.adapters.kubernetes.api import PODS, NotFound
from stele.errors import Conflict
from stele.master.attempts import error_of
from stele.master.children import Children

USERS_FILE, CERTIFICATE_FILE = "stele.dev/users-file", "stele.dev/certificate-file"
"""Annotations of a pod: the digest of the file that it should have, and how often that was asked."""

REPEAT_SECONDS = 2.0
"""Seconds until a kubelet is asked again: it may have looked before it heard of the Secret's new version."""

TIMES_MAX = 3
"""How often a kubelet is asked for one file; one that does not answer looks once it is back."""

PODS_PER_ROUND_MAX = 64
"""Pods that are changed at once, so that a large cluster delays no heartbeat."""

Object = dict[str, Any]

Lacking = Mapping[str, str]
"""The digest of the newest file, by the names of members that run and have reported another one."""


class PodRefresh:
    """Changes an annotation of pods whose members lack the newest file. Nothing depends on it but time."""

    def __init__(self, children: Children, annotation: str) -> None:
        self._children, self._annotation = children, annotation
        self._again_at: dict[str, tuple[str, float]] = {}

    async def ask(self, lacking: Lacking, members: Iterable[Object], now: float) -> None:
        """Ask the kubelets of those of the stored `members` that lack the file; `now` is monotonic.

        Pods that changed meanwhile are asked in the next round. Raises what else the API server raises.
        """
        self._again_at = {pod: when for pod, when in self._again_at.items() if pod in lacking}
        stored = (each for each in members if each["metadata"]["name"] in lacking)
        due = [pod for member in stored if (pod := self._due(member, lacking, now)) is not None]
        asked = [self._touch(pod, lacking, now) for pod in due[:PODS_PER_ROUND_MAX]]
        for error in await asyncio.gather(*(error_of(each) for each in asked)):
            if error is not None and not isinstance(error, (Conflict, NotFound)):
                raise error

    def _due(self, member: Object, lacking: Lacking, now: float) -> Object | None:
        """Return the member's pod if its kubelet is to be asked now."""
        name = member["metadata"]["name"]
        pod = self._children.find(PODS, name, member["metadata"]["uid"])
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return None
        asked, until = self._again_at.get(name, ("", now))
        waits = asked == lacking[name] and now < until
        return None if waits or self._times(pod, lacking[name]) >= TIMES_MAX else pod

    async def _touch(self, pod: Object, lacking: Lacking, now: float) -> None:
        meta, digest = pod["metadata"], lacking[pod["metadata"]["name"]]
        value = f"{digest} {self._times(pod, digest) + 1}"
        annotations = {**(meta.get("annotations") or {}), self._annotation: value}
        await self._children.replace(PODS, pod, {**pod, "metadata": {**meta, "annotations": annotations}})
        self._again_at[meta["name"]] = digest, now + REPEAT_SECONDS

    def _times(self, pod: Object, digest: str) -> int:
        """Return how often the kubelet was asked for this file."""
        noted = (pod["metadata"].get("annotations") or {}).get(self._annotation, "")
        asked, _, times = noted.partition(" ")
        known = tuple(str(each) for each in range(TIMES_MAX + 1))
        return known.index(times) if asked == digest and times in known else 0
