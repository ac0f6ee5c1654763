"""The Job in which `kubectl stele load` and `dump` run Spark, used through the API server.

Where members are dialled with TLS, its port takes nothing but TLS and the certificate of administrators,
which it has itself, too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from stele.adapters.body import read_body
from stele.adapters.kubernetes import admin_tls
from stele.adapters.kubernetes.admin_tls import LONG, Admin, Asked, admin_of
from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, EVENTS, JOBS, PODS, Api, Object, refusal_of
from stele.adapters.logs import LogFormat, environment_of
from stele.core.security.identity import Role
from stele.errors import BadInput, Corrupt, Refused, SteleError, Unavailable
from stele.model import TabletCluster
from stele.model.common import Unreadable
from stele.wire.pods import admin_secret_name, container_security, pod_security
from stele.wire.unreadable import UNREADABLE

PORT = 7003
WORK = "/work"
TLS_FOLDER = "/etc/stele/tls"
"""Where the pod has the Secret with the certificate of administrators, with TLS."""
DEFAULTS = "stele-bulk"
"""ConfigMap of the chart with `image`, `pullPolicy`, `pullSecrets` and `logFormat`."""
READY_SECONDS_MAX = 180.0
LIFE_SECONDS_MAX = 6 * 3600
"""Kubernetes ends a Job after this time, if its command was killed."""
KEPT_SECONDS = 600
"""Kubernetes deletes a Job this long after its end."""
ASK_SECONDS = 0.5
CHUNK_BYTES = 1024 * 1024
STATUS_BYTES_MAX = 1024 * 1024
"""Largest answer of a Job that says what it is at."""


def labels_of(cluster: str) -> dict[str, str]:
    """Return the labels of a cluster's Jobs and their pods."""
    return {
        "app.kubernetes.io/name": "stele",
        "app.kubernetes.io/component": "bulk",
        "app.kubernetes.io/instance": cluster,
    }


def manifest(cluster: Object, memory: str, defaults: Mapping[str, str], *, with_tls: bool) -> Object:
    """Return a Job of a single attempt, as its pod has the file. It is owned by its TabletCluster."""
    meta = cluster["metadata"]
    owner = {
        "apiVersion": cluster["apiVersion"],
        "kind": "TabletCluster",
        "name": meta["name"],
        "uid": meta["uid"],
    }
    labels = labels_of(meta["name"])
    pod = _pod(memory, defaults)
    pod["containers"][0]["env"] += _log_env(meta, defaults)
    if with_tls:
        _secure(pod, meta["name"])
    return {
        "apiVersion": JOBS.api,
        "kind": JOBS.kind,
        "metadata": {"generateName": f"{meta['name']}-bulk-", "labels": labels, "ownerReferences": [owner]},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": LIFE_SECONDS_MAX,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _pod(memory: str, defaults: Mapping[str, str]) -> Object:
    """Return the pod, which meets the Pod Security Standard `restricted`."""
    names = filter(None, defaults.get("pullSecrets", "").split(","))
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "imagePullSecrets": [{"name": name} for name in names],
        "containers": [_container(memory, defaults)],
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
        "securityContext": pod_security(),
    }


def _secure(pod: Object, cluster: str) -> None:
    """Give a pod the certificate of administrators, which it waits for, and with which alone it is asked."""
    (container,) = pod["containers"]
    container["args"] += ["--tls-folder", TLS_FOLDER]
    container["readinessProbe"]["httpGet"]["scheme"] = "HTTPS"
    container["volumeMounts"].append({"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True})
    secret = {"secretName": admin_secret_name(cluster), "defaultMode": 0o440}
    pod["volumes"].append({"name": "tls", "secret": secret})


def _log_env(meta: Object, defaults: Mapping[str, str]) -> list[Object]:
    log_format = defaults.get("logFormat", LogFormat.JSON)
    values = environment_of(log_format, meta.get("namespace", ""), meta["name"])
    return [{"name": name, "value": value} for name, value in values.items()]


def _container(memory: str, defaults: Mapping[str, str]) -> Object:
    return {
        "name": "bulk",
        "image": defaults["image"],
        "imagePullPolicy": defaults.get("pullPolicy", "IfNotPresent"),
        "args": ["stele-bulk", "serve", "--port", str(PORT), "--folder", WORK],
        "env": [{"name": "SPARK_LOCAL_DIRS", "value": WORK}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "500m", "memory": memory}, "limits": {"memory": memory}},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "work", "mountPath": WORK},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


class BulkJob:
    """One load or export. It is deleted at the end of the `running` block."""

    def __init__(self, api: Api, namespace: str, created: Object, admin: Admin | None) -> None:
        self._api, self._namespace, self._admin, self._pod = api, namespace, admin, ""
        self._name: str = created["metadata"]["name"]
        self._uid: str = created["metadata"]["uid"]

    @property
    def tls_folder(self) -> str:
        """Return where the pod has what members are asked with; nothing for plain requests."""
        return TLS_FOLDER if self._admin else ""

    async def until_ready(self) -> None:
        """Wait for the pod. Raises Unavailable, BadInput or Refused, with Kubernetes' reason."""
        end = asyncio.get_running_loop().time() + READY_SECONDS_MAX
        while reason := await self._waits_for():
            if asyncio.get_running_loop().time() > end:
                raise Unavailable(f"job {self._name} does not start: {reason}")
            await asyncio.sleep(ASK_SECONDS)

    async def _waits_for(self) -> str:
        """Return why the pod is not ready, empty once it is."""
        pods = await self._api.list(PODS, self._namespace, f"batch.kubernetes.io/job-name={self._name}")
        if not pods:
            await self._check_refusal()
            return "it has no pod yet"
        status = pods[0].get("status") or {}
        if any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()):
            self._pod = pods[0]["metadata"]["name"]
            return ""
        reason = _waiting_for(status)
        if status.get("phase") in ("Failed", "Succeeded"):
            raise Unavailable(f"job {self._name} does not start: {reason}")
        if "ErrImage" in reason or "ImagePull" in reason:
            raise BadInput(
                f"job {self._name} cannot pull its image: {reason}; set one with --image or "
                "spec.images.bulk of the TabletCluster"
            )
        return reason

    async def _check_refusal(self) -> None:
        """Raise Refused when the pod was rejected by a quota or pod security, which only events report."""
        fields = f"involvedObject.uid={self._uid},reason=FailedCreate"
        events = await self._api.list(EVENTS, self._namespace, fields=fields)
        if events:
            raise Refused(f"job {self._name} may not start: {events[0].get('message', '')}", "FORBIDDEN")

    async def send(self, file: Path) -> None:
        """Send the file to load."""
        size = str(file.stat().st_size)
        async with self._call("PUT", "/file", _chunks(file), {"Content-Length": size}):
            pass

    async def start(self, command: str, arguments: list[str]) -> None:
        """Start the job."""
        async with self._call("POST", "/job", {"command": command, "arguments": arguments}):
            pass

    async def follow(self, heard: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Return the job's result, calling `heard` for each new line. Raises the job's error."""
        last = None
        while True:
            async with self._call("GET", "/job") as answer:
                status = self._status(await read_body(answer, STATUS_BYTES_MAX))
            if status != last:
                last = status
                heard({"step": status.step, "done": status.done, "all": status.all})
            if status.error is not None:
                raise _error(status.error)
            if status.result is not None:
                return status.result
            await asyncio.sleep(ASK_SECONDS)

    def _status(self, body: bytes) -> "_Status":
        try:
            return msgspec.json.decode(body, type=_Status)
        except UNREADABLE as error:
            raise Corrupt(
                f"job {self._name} answered with what this command cannot read ({error}): "
                "use an image of the same version as kubectl stele (--image)"
            ) from error

    async def receive(self, target: Path) -> None:
        """Receive the dumped file."""
        part = target.with_name(f".{target.name}.part")
        try:
            async with self._call("GET", "/file") as answer:
                with _writing(target), part.open("wb") as file:
                    async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                        file.write(chunk)
            with _writing(target):
                part.rename(target)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    @asynccontextmanager
    async def _call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer of status 200. Raises as a GET does: each request may be repeated."""
        if self._admin is None:
            place = self._namespace, f"{self._pod}:{PORT}"
            async with self._api.through_pod(method, place, path, body, headers or {}) as answer:
                yield answer
            return
        asked = Asked(self._namespace, self._pod, PORT, Role.ADMIN, Role.ADMIN)
        given = {"json" if isinstance(body, dict) else "data": body, "headers": headers, "timeout": LONG}
        async with admin_tls.request(self._api, self._admin, asked, method, path, **given) as answer:
            if answer.status >= 300:
                raise await refusal_of(path, answer)
            yield answer

    async def delete(self) -> None:
        await self._api.delete(JOBS, self._namespace, self._name, self._uid)


@asynccontextmanager
async def running(api: Api, namespace: str, cluster: str, image: str, memory: str) -> AsyncIterator[BulkJob]:
    """Yield a ready Job; an empty `image` selects that of the cluster's spec, or else of the chart.

    Raises Refused, before a Job is made, for who may not administer a cluster whose members are dialled with
    TLS.
    """
    owner = await api.get(CLUSTERS, namespace, cluster)
    admin = await _admin_of(api, namespace, owner)
    config_map = await api.find(CONFIG_MAPS, namespace, DEFAULTS) or {}
    named = image or (owner["spec"].get("images") or {}).get("bulk")
    defaults = {**(config_map.get("data") or {}), **({"image": named} if named else {})}
    if "image" not in defaults:
        raise BadInput(
            f"the image for Spark is unknown, since ConfigMap {DEFAULTS} does not exist in namespace "
            f"{namespace}: set the image with --image, spec.images.bulk of the TabletCluster, or images.bulk "
            "of the chart"
        )
    wanted = manifest(owner, memory, defaults, with_tls=admin is not None)
    job = BulkJob(api, namespace, await api.create(JOBS, namespace, wanted), admin)
    try:
        await job.until_ready()
        yield job
    finally:
        await asyncio.shield(job.delete())


async def _admin_of(api: Api, namespace: str, cluster: Object) -> Admin | None:
    found = TabletCluster.read(cluster)
    if isinstance(found, Unreadable):
        raise Corrupt(str(found))
    return await admin_of(api, namespace, found)


def _waiting_for(status: Object) -> str:
    reasons = [f"phase {status.get('phase', 'Pending')}"]
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or (each.get("state") or {}).get("terminated")
        if waiting:
            reasons.append(f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip())
    reasons += [
        c["message"] for c in status.get("conditions") or () if c["status"] != "True" and "message" in c
    ]
    return "; ".join(reasons)[:500]


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Raise BadInput for errors of the local disk, but not for those of the connection."""
    try:
        yield
    except aiohttp.ClientError:
        raise
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}; name another file") from error


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while data := opened.read(CHUNK_BYTES):
            yield data


class _Failure(msgspec.Struct, frozen=True):
    code: str = ""
    detail: str = ""


class _Status(msgspec.Struct, frozen=True):
    """What the job is at, with numbers of tablets; at its end what it returns, or why it failed."""

    step: str = ""
    done: int = 0
    all: int = 0
    result: dict[str, Any] | None = None
    error: _Failure | None = None


def _error(failure: _Failure) -> SteleError:
    kind = BadInput if failure.code in ("BAD_INPUT", "TOO_LARGE") else SteleError
    return kind(failure.detail, failure.code or None)
