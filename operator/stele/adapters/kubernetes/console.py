"""Access for users at a terminal: objects as models, tables, and members through the API server.

It only needs the user's permissions: get and list Stele's resources and ConfigMaps, `pods/proxy` for queries
of members (or `pods/portforward` and a certificate, see `admin_port`), and create and patch the objects that
commands change.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

import aiohttp
import msgspec
from kubernetes.aio import config

from stele.adapters.kubernetes import pod_logs
from stele.adapters.kubernetes.admin_port import ERROR_BYTES_MAX, AdminPort, decoded
from stele.adapters.kubernetes.api import (
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    LEASES,
    MEMBERS,
    PODS,
    REBALANCES,
    REVISIONS,
    SECRETS,
    USERS,
    Api,
    Kind,
    NotFound,
    Object,
    error_of,
)
from stele.adapters.kubernetes.bulk_job import BulkJob, running
from stele.adapters.kubernetes.login import Login, log_in
from stele.adapters.kubernetes.pod_logs import Container
from stele.adapters.kubernetes.report_source import ReportSource
from stele.adapters.members.client import ADMIN_PORT
from stele.core.table.table import Partition
from stele.errors import BadInput, Conflict, Corrupt, Refused, SteleError, Unavailable
from stele.model import API_VERSION, TabletCluster, TabletMember, TabletRebalance, TabletUser
from stele.model.common import Resource, Unreadable
from stele.model.ownership import CLUSTER_UID_LABEL
from stele.model.rollout import Revision
from stele.wire.configmap import Head, decode_head, decode_shard, shard_count
from stele.wire.unreadable import UNREADABLE

R = TypeVar("R", bound=Resource)
T = TypeVar("T")

ERROR_CHARACTERS_MAX = 500
"""Characters of a member's error that are shown."""


@dataclass(frozen=True)
class Table:
    """The stored table. Shards are read one after the other, so rows may differ slightly in time."""

    head: Head
    rows: tuple[Partition, ...]


@asynccontextmanager
async def connect(
    namespace: str | None, context: str | None, kubeconfig: str | None
) -> "AsyncIterator[Console]":
    """Log in as kubectl does.

    Raises BadInput when the given kubeconfig or context is unusable, Unavailable when there is none.
    """
    try:
        login = await log_in(kubeconfig, context)
        api = Api(login, login.impersonation)
        await api.__aenter__()
    except (BadInput, OSError, ValueError) as error:
        if kubeconfig is not None or context is not None:
            raise BadInput(f"--kubeconfig or --context cannot be used: {_text(error)}") from None
        raise Unavailable(_text(error)) from None
    try:
        yield Console(api, namespace or _namespace(login, context, kubeconfig))
    finally:
        await api.__aexit__()


def _text(error: Exception) -> str:
    return error.text if isinstance(error, SteleError) else str(error)


def _namespace(login: Login, context: str | None, kubeconfig: str | None) -> str:
    """Return the namespace of the kubeconfig's context, else the one this process runs in."""
    try:
        contexts, active = config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError):
        return login.namespace
    chosen = active if context is None else next(each for each in contexts if each["name"] == context)
    return str(chosen["context"].get("namespace") or login.namespace)


class Console:
    """Access to one namespace. Reads raise Unavailable, NotFound and Refused as `Api` does."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self.namespace = namespace
        self._admin_port = AdminPort(api, namespace)

    async def clusters(self, name: str | None = None, *, everywhere: bool = False) -> list[TabletCluster]:
        """Return all clusters, or the named one; `everywhere`: of all namespaces.

        Raises NotFound with the existing names.
        """
        clusters = await self._list(CLUSTERS, TabletCluster, everywhere=everywhere)
        return clusters if name is None else [self._named(name, clusters, "TabletCluster")]

    async def cluster(self, name: str) -> TabletCluster:
        return (await self.clusters(name))[0]

    async def members(self, cluster: str | None = None, *, everywhere: bool = False) -> list[TabletMember]:
        """Return members by namespace, cluster and index. Raises NotFound without such a cluster."""
        if cluster is not None:
            await self.clusters(cluster)
        members = await self._list(MEMBERS, TabletMember, everywhere=everywhere)
        selected = [each for each in members if cluster in (None, each.spec.cluster)]
        return sorted(selected, key=_place)

    async def rebalances(self, cluster: str) -> list[TabletRebalance]:
        """Return the plans of a cluster that still exist."""
        plans = await self._list(REBALANCES, TabletRebalance)
        return [each for each in plans if each.spec.cluster == cluster]

    async def secret(self, name: str) -> dict[str, str]:
        """Return the data of a Secret, in base64. Raises NotFound, and Refused without the right to it."""
        return (await self._api.get(SECRETS, self.namespace, name)).get("data") or {}

    async def users(self, cluster: str) -> list[TabletUser]:
        """Return the TabletUsers of a cluster."""
        found = await self._list(USERS, TabletUser)
        return [each for each in found if each.spec.cluster == cluster]

    async def all_rebalances(self) -> list[TabletRebalance]:
        """Return the plans of all clusters that still exist."""
        return await self._list(REBALANCES, TabletRebalance)

    async def rebalance(self, name: str) -> TabletRebalance:
        """Return a plan. Raises NotFound with the existing names."""
        return self._named(name, await self._list(REBALANCES, TabletRebalance), "TabletRebalance")

    async def change_rebalance(self, name: str, spec: Object) -> None:
        """Change a plan's spec.

        Raises BadInput with the API server's message, Uncertain without an answer.
        """
        await self._api.patch_spec(REBALANCES, self.namespace, name, spec)

    async def make_rebalance(self, prefix: str, spec: Object) -> str:
        """Create a TabletRebalance; return its name, which begins with the prefix."""
        body = {"apiVersion": API_VERSION, "kind": "TabletRebalance", "spec": spec}
        created = await self._api.create(
            REBALANCES, self.namespace, body | {"metadata": {"generateName": prefix}}
        )
        return str(created["metadata"]["name"])

    async def change_member(self, name: str, spec: Object) -> None:
        """Change a member's spec. Raises NotFound with the existing names, and as `change_rebalance` does."""
        self._named(name, await self._list(MEMBERS, TabletMember), "TabletMember")
        await self._api.patch_spec(MEMBERS, self.namespace, name, spec)

    async def annotate_member(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a member; None removes one. Raises as `change_member` does."""
        self._named(name, await self._list(MEMBERS, TabletMember), "TabletMember")
        await self._api.annotate(MEMBERS, self.namespace, name, annotations)

    async def change_cluster(self, name: str, spec: Object) -> None:
        """Change a cluster's spec.

        Raises NotFound with the existing names, and as `change_rebalance` does.
        """
        await self.cluster(name)
        await self._api.patch_spec(CLUSTERS, self.namespace, name, spec)

    async def annotate_cluster(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a cluster; None removes one. Raises as `change_cluster` does."""
        await self.cluster(name)
        await self._api.annotate(CLUSTERS, self.namespace, name, annotations)

    async def make_cluster(self, name: str, spec: Object) -> None:
        """Create a TabletCluster. Raises BadInput with the API server's message."""
        body = {"apiVersion": API_VERSION, "kind": "TabletCluster", "spec": spec}
        await self._api.create(CLUSTERS, self.namespace, body | {"metadata": {"name": name}})

    async def claims(self, cluster: str, uid: str) -> list[Object]:
        """Return the volume claims that a cluster with this UID left, by name.

        Raises NotFound with the UIDs that there are.
        """
        listed = await self._api.list(CLAIMS, self.namespace, CLUSTER_UID_LABEL)
        uids = {each["metadata"]["name"]: each["metadata"]["labels"][CLUSTER_UID_LABEL] for each in listed}
        of_cluster = {name: each for name, each in uids.items() if name.rpartition("-")[0] == cluster}
        if uid not in of_cluster.values():
            known = ", ".join(sorted(set(of_cluster.values()))) or "none"
            others = sorted({name.rpartition("-")[0] for name, each in uids.items() if each == uid})
            hint = f"; the claims with this UID are of {', '.join(others)}" if others else ""
            raise NotFound(
                f'no claim of "{cluster}" in namespace "{self.namespace}" has {CLUSTER_UID_LABEL}={uid}; '
                f"its claims have: {known}{hint}"
            )
        claims = [each for each in listed if of_cluster.get(each["metadata"]["name"]) == uid]
        return sorted(claims, key=lambda each: str(each["metadata"]["name"]))

    async def set_aside(self, claim: Object) -> None:
        """Take a claim from its cluster, which keeps its data. Raises Conflict when the claim was changed."""
        labels = claim["metadata"]["labels"]
        left_out = labels | {CLUSTER_UID_LABEL: f"{labels[CLUSTER_UID_LABEL]}-left-out"}
        body = {**claim, "metadata": {**claim["metadata"], "labels": left_out}}
        await self._api.replace(CLAIMS, self.namespace, body)

    async def revisions(self, cluster: TabletCluster) -> list[Revision]:
        """Return the kept specs of a cluster's members, the present one last."""
        selector = f"{CLUSTER_UID_LABEL}={cluster.metadata.uid}"
        stored = await self._api.list(REVISIONS, self.namespace, selector)
        return sorted((Revision.read(each) for each in stored), key=lambda each: each.number)

    async def table(self, cluster: str) -> Table:
        """Return the stored table.

        Raises NotFound when there is none yet, Corrupt when it is inconsistent.
        """
        head = await self.table_head(cluster)
        rows: list[Partition] = []
        for number in range(shard_count(head.rows)):
            rows += await self.table_shard(cluster, head, number)
        return Table(head, tuple(rows))

    async def table_head(self, cluster: str) -> Head:
        """Return what the table says of the whole cluster, in one read. Raises as `table` does."""
        try:
            return decode_head(await self._config_map(f"{cluster}-table"))
        except NotFound:
            text = f'"{cluster}" has no partition table yet: no operator has taken it over; check the logs'
            raise NotFound(text) from None

    async def table_shard(self, cluster: str, head: Head, number: int) -> tuple[Partition, ...]:
        """Return the rows of one shard of SHARD_PARTITIONS, in one read. Raises as `table` does."""
        data = await self._config_map(f"{cluster}-table-{number}")
        return decode_shard(data, number, head.rows).rows

    async def ask_member(self, method: str, member: str, path: str, form: type[T], **query: str) -> T:
        """Return a member's answer at its admin port, which must have this form.

        Raises the member's error: NotFound, BadInput or Refused; Unavailable without an answer, Corrupt for
        one of another form or size.
        """
        status, body = await self._admin_port.ask(method, member, path, query)
        if status < HTTPStatus.MULTIPLE_CHOICES:
            return decoded(member, path, body, form)
        try:
            answer = msgspec.json.decode(body, type=_Error)
        except UNREADABLE:
            answer = _Error()
        text = body[:ERROR_BYTES_MAX].decode(errors="replace")
        if answer.kind == "Status":
            raise error_of("GET" if status >= 500 else method, f"member {member}: {path}", status, text)
        raise _answered(member, status, answer, text.strip()[:ERROR_CHARACTERS_MAX])

    async def stream_member(self, member: str, path: str) -> AsyncGenerator[bytes]:
        """Iterate the body of a member's response, however large.

        Raises NotFound, Refused or BadInput with its error, and Unavailable when it ends early.
        """
        async for chunk in self._admin_port.stream(member, path):
            yield chunk

    async def pods(self, cluster: str) -> list[Object]:
        """Return the pods of a cluster. Raises NotFound with the existing clusters."""
        await self.cluster(cluster)
        return await pod_logs.pods_of(self._api, self.namespace, cluster)

    def log_lines(self, container: Container, **query: str) -> AsyncIterator[bytes]:
        """Iterate the lines of a container's log; see `pod_logs.lines_of`."""
        return pod_logs.lines_of(self._api, self.namespace, container, **query)

    def report_source(self, cluster: str) -> ReportSource:
        """Return what a support bundle of the cluster is made of."""
        return ReportSource(self._api, self.namespace, cluster, self._admin_port)

    def bulk_job(self, cluster: str, image: str, memory: str) -> AbstractAsyncContextManager[BulkJob]:
        """Return a context with a Job for one bulk load or export; see `bulk_job.running`."""
        return running(self._api, self.namespace, cluster, image, memory)

    async def leader(self, lease: str) -> str:
        """Return the pod of the operator that leads, by the Lease in this namespace.

        Raises NotFound where there is no operator, and Unavailable while none leads.
        """
        try:
            held = await self._api.get(LEASES, self.namespace, lease)
        except NotFound:
            text = f'namespace "{self.namespace}" has no Lease {lease}: -n names that of the operator'
            raise NotFound(text) from None
        holder = held["spec"].get("holderIdentity")
        for pod in await self._api.list(PODS, self.namespace):
            if pod["metadata"]["uid"] == holder:
                return str(pod["metadata"]["name"])
        raise Unavailable(f'no pod in namespace "{self.namespace}" holds Lease {lease}; retry in a moment')

    def forward(self, pod: str, port: int) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Return a context with a connection to a port of a pod, for `port_forward.Forward`."""
        return self._api.forward(self.namespace, pod, port)

    def members_address(self, cluster: str) -> str:
        """Return the address of the cluster's members inside Kubernetes."""
        return f"{cluster}-members.{self.namespace}:{ADMIN_PORT}"

    async def _config_map(self, name: str) -> dict[str, str]:
        stored = await self._api.get(CONFIG_MAPS, self.namespace, name)
        return stored.get("data") or {}

    async def _list(self, kind: Kind, model: type[R], *, everywhere: bool = False) -> list[R]:
        try:
            stored = await self._api.list(kind, None if everywhere else self.namespace)
        except NotFound:
            text = f"{kind.plural}.stele.dev is not installed in this cluster; install Stele's chart first"
            raise NotFound(text) from None
        objects = []
        for stored_object in stored:
            read = model.read(stored_object)
            if isinstance(read, Unreadable):
                raise Corrupt(str(read))
            objects.append(read)
        return objects

    def _named(self, name: str, found: list[R], kind: str) -> R:
        for each in found:
            if each.metadata.name == name:
                return each
        existing = ", ".join(each.metadata.name for each in found) or "none"
        raise NotFound(
            f'there is no {kind} "{name}" in namespace "{self.namespace}"; existing are: {existing}'
        )


def _place(member: TabletMember) -> tuple[str, str, int]:
    return member.metadata.namespace, member.spec.cluster, member.spec.index


class _Error(msgspec.Struct, frozen=True):
    """An error of a member, or of the API server (`kind` Status)."""

    kind: str = ""
    code: str | int = ""
    detail: str = ""


def _answered(member: str, status: int, found: _Error, text: str) -> SteleError:
    """Return the error for a member's own response."""
    code, detail = str(found.code)[:ERROR_CHARACTERS_MAX], found.detail[:ERROR_CHARACTERS_MAX] or text
    message = f"{member}: {detail}"
    if status == 404:
        return NotFound(message)
    if status == 400:
        return BadInput(message)
    if status in (HTTPStatus.FORBIDDEN, HTTPStatus.UPGRADE_REQUIRED):
        return Refused(message, "FORBIDDEN")
    if status == 409:
        return Refused(message, code or None) if code else Conflict(message)
    return Unavailable(f"{member} answered {status}: {detail}")
