"""What a support bundle of a cluster is made of. Secrets are not read."""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from stele.adapters.kubernetes import pod_logs
from stele.adapters.kubernetes.admin_port import METRICS_PORT, AdminPort, decoded
from stele.adapters.kubernetes.api import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    KEYSPACES,
    MEMBERS,
    NETWORK_POLICIES,
    PODS,
    REBALANCES,
    REVISIONS,
    SERVICES,
    USERS,
    Api,
    NotFound,
    Object,
    error_of,
)
from stele.adapters.kubernetes.pod_logs import Container
from stele.errors import SteleError
from stele.model.ownership import CLUSTER_LABEL, belongs_to

OPERATORS = "app.kubernetes.io/name=stele-operator"
"""Label of the operator's pods, which may be in another namespace."""

OPERATOR_PORT = 8080
"""Port of the operator's metrics."""

_BUILD = re.compile(rb'stele_build_info\{(?:[^}\n]*,)?version="([^"]{1,64})"')

_NAMED = {
    kind.plural: kind
    for kind in (CLUSTERS, MEMBERS, REBALANCES, KEYSPACES, USERS, PODS, CLAIMS, SERVICES, CONFIG_MAPS)
}
_NAMED |= {kind.plural: kind for kind in (BUDGETS, NETWORK_POLICIES, REVISIONS, JOBS)}


class ReportSource:
    """One cluster. Each method raises as a GET does."""

    plurals = (*_NAMED, "operators")

    def __init__(self, api: Api, namespace: str, cluster: str, port: AdminPort) -> None:
        self._api, self._namespace, self._cluster, self._port = api, namespace, cluster, port

    async def check(self) -> None:
        """Raise NotFound, with the clusters that there are, unless this one exists, readable or not."""
        names = [str(each["metadata"]["name"]) for each in await self._api.list(CLUSTERS, self._namespace)]
        if self._cluster not in names:
            raise NotFound(
                f'there is no TabletCluster "{self._cluster}" in namespace "{self._namespace}"; '
                f"existing are: {', '.join(names) or 'none'}"
            )

    async def objects(self, plural: str) -> list[Object]:
        """Return the objects of a kind that are the cluster's."""
        if plural == "operators":
            return await self._operators()
        stored = await self._api.get(CLUSTERS, self._namespace, self._cluster)
        found = await self._api.list(_NAMED[plural], self._namespace)
        return [each for each in found if self._is_part(each, str(stored["metadata"]["uid"]))]

    def _is_part(self, stored: Object, uid: str) -> bool:
        meta, spec = stored["metadata"], stored.get("spec") or {}
        if stored["kind"] == CLUSTERS.kind:
            return bool(meta["name"] == self._cluster)
        labelled = (meta.get("labels") or {}).get(CLUSTER_LABEL) == self._cluster
        return labelled or spec.get("cluster") == self._cluster or belongs_to(stored, uid)

    async def _operators(self) -> list[Object]:
        try:
            return await self._api.list(PODS, None, OPERATORS)
        except SteleError:
            return await self._api.list(PODS, self._namespace, OPERATORS)

    async def events(self) -> list[Object]:
        """Return the events of the cluster, and of objects whose names begin with its name."""
        found = await self._api.list(EVENTS, self._namespace)
        return [each for each in found if self._is_about(str(each["involvedObject"].get("name", "")))]

    def _is_about(self, name: str) -> bool:
        return name == self._cluster or name.startswith(f"{self._cluster}-")

    async def table(self) -> dict[str, Any]:
        """Return the names of the ConfigMaps of the table with their sizes; their text is in the objects."""
        found = await self.objects(CONFIG_MAPS.plural)
        return {
            str(each["metadata"]["name"]): {key: len(text) for key, text in (each.get("data") or {}).items()}
            for each in found
        }

    async def versions(self) -> dict[str, Any]:
        """Return the versions of Kubernetes, and the images of all pods with what runs in them."""
        pods = {
            f"{each['metadata']['namespace']}/{each['metadata']['name']}": _images(each)
            for plural in (PODS.plural, "operators")
            for each in await self.objects(plural)
        }
        return {"kubernetes": await self._api.version(), "pods": pods}

    async def member_names(self) -> list[str]:
        return [str(each["metadata"]["name"]) for each in await self.objects(MEMBERS.plural)]

    async def ask(self, member: str, path: str, **query: str) -> dict[str, Any]:
        """Return a member's answer at its admin port."""
        status, body = await self._port.ask("GET", member, path, query)
        if status >= 300:
            raise error_of("GET", f"member {member}: {path}", status, body.decode(errors="replace"))
        return decoded(member, path, body, dict[str, Any])

    async def running(self) -> list[tuple[str, str, str]]:
        """Return what runs: operator or member, its name, and its version, empty where it does not say."""
        operators = [each["metadata"] for each in await self._operators()]
        places = [("operator", str(each["namespace"]), str(each["name"])) for each in operators]
        places += [("member", self._namespace, name) for name in await self.member_names()]
        return [
            (
                kind,
                name if kind == "member" else f"{namespace}/{name}",
                await self._version(kind, namespace, name),
            )
            for kind, namespace, name in places
        ]

    async def _version(self, kind: str, namespace: str, name: str) -> str:
        port = OPERATOR_PORT if kind == "operator" else METRICS_PORT
        try:
            found = _BUILD.search(await self._port.metrics(name, namespace, port))
        except SteleError:
            return ""
        return found[1].decode(errors="replace") if found else ""

    async def metrics(self, member: str) -> bytes:
        return await self._port.metrics(member, self._namespace)

    async def containers(self) -> list[tuple[str, Container]]:
        """Return the containers of members, copies and operators that have started, with namespaces."""
        pods = [each for plural in (PODS.plural, "operators") for each in await self.objects(plural)]
        return [
            (str(pod["metadata"]["namespace"]), each)
            for pod in pods
            for each in pod_logs.containers_of(pod)
            if each.start
        ]

    def log_lines(
        self, namespace: str, container: Container, query: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        return pod_logs.lines_of(self._api, namespace, container, **query)


def _images(pod: Object) -> dict[str, str]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    running = {each["name"]: str(each.get("imageID", "")) for each in statuses}
    named = {each["name"]: str(each.get("image", "")) for each in pod["spec"]["containers"]}
    return {name: f"{image} {running.get(name, '')}".strip() for name, image in named.items()}
