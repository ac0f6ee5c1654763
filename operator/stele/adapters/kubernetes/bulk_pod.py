"""The pod that `kubectl stele load` and `dump` run Spark in: made, fed and asked through the API server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from stele.adapters.kubernetes.api import CLUSTERS, PODS, Api, Object
from stele.errors import BadInput, SteleError, Unavailable

PORT = 7003
WORK = "/work"
USER = 10001
READY_SECONDS_MAX = 180.0
LIFE_SECONDS_MAX = 6 * 3600
"""A pod that its command forgot, because that was killed, is ended by Kubernetes after so long."""
ASK_SECONDS = 0.5
CHUNK_BYTES = 1024 * 1024


def manifest(name: str, cluster: Object, image: str, memory: str, pull_secrets: Sequence[Object]) -> Object:
    """A pod that fits restricted pod security, and that goes with its TabletCluster."""
    meta = cluster["metadata"]
    owner = {
        "apiVersion": cluster["apiVersion"],
        "kind": "TabletCluster",
        "name": meta["name"],
        "uid": meta["uid"],
    }
    container = {
        "name": "bulk",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["stele-bulk", "serve", "--port", str(PORT), "--folder", WORK],
        "env": [{"name": "SPARK_LOCAL_DIRS", "value": WORK}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "500m", "memory": memory}, "limits": {"memory": memory}},
        "readinessProbe": {"httpGet": {"path": "/job", "port": PORT}, "periodSeconds": 1},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "work", "mountPath": WORK}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_SECONDS_MAX,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "imagePullSecrets": pull_secrets,
        "containers": [container],
        "volumes": [{"name": "work", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    labels = {
        "app.kubernetes.io/name": "stele",
        "app.kubernetes.io/component": "bulk",
        "app.kubernetes.io/instance": meta["name"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{name}-", "labels": labels, "ownerReferences": [owner]},
        "spec": spec,
    }


class BulkPod:
    """One pod for one job. It is gone when the block of `running` ends."""

    def __init__(self, api: Api, namespace: str, made: Object) -> None:
        self._api, self._namespace = api, namespace
        self.name: str = made["metadata"]["name"]
        self._uid: str = made["metadata"]["uid"]

    async def until_ready(self) -> None:
        """Raise Unavailable, with what Kubernetes says of the pod, when it does not start."""
        loop = asyncio.get_running_loop()
        end = loop.time() + READY_SECONDS_MAX
        while True:
            status = (await self._api.get(PODS, self._namespace, self.name)).get("status") or {}
            if any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()):
                return
            told = _waiting_for(status)
            if loop.time() > end or status.get("phase") in ("Failed", "Succeeded"):
                raise Unavailable(f"pod {self.name} does not start: {told}")
            if "ErrImage" in told or "ImagePull" in told:
                raise BadInput(f"pod {self.name} has no image: {told}; name one with --image")
            await asyncio.sleep(ASK_SECONDS)

    async def send(self, file: Path) -> None:
        """The file that is to be loaded."""
        size = str(file.stat().st_size)
        async with self._call("PUT", "/file", _chunks(file), {"Content-Length": size}):
            pass

    async def start(self, command: str, arguments: list[str]) -> None:
        """Begin the job."""
        async with self._call("POST", "/job", {"command": command, "arguments": arguments}):
            pass

    async def follow(self, heard: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """The job's result; `heard` gets each line that differs from the one before. Raise its error."""
        last: dict[str, Any] = {}
        while True:
            async with self._call("GET", "/job") as answer:
                told = await answer.json()
            if told != last:
                last = told
                heard(told)
            if "error" in told:
                raise _error(told["error"])
            if "result" in told:
                result: dict[str, Any] = told["result"]
                return result
            await asyncio.sleep(ASK_SECONDS)

    async def receive(self, target: Path) -> None:
        """The file that was made."""
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

    def _call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        place = self._namespace, f"{self.name}:{PORT}"
        return self._api.through_pod(method, place, path, body, headers or {})

    async def delete(self) -> None:
        await self._api.delete(PODS, self._namespace, self.name, self._uid, grace_seconds=1)


@asynccontextmanager
async def running(api: Api, namespace: str, cluster: str, image: str, memory: str) -> AsyncIterator[BulkPod]:
    """A ready pod, pulled with the Secrets of the cluster's pods. An empty `image` takes that beside the
    members' own: stele-sql for stele-member.
    """
    found = await api.get(CLUSTERS, namespace, cluster)
    pods = await api.list(PODS, namespace, f"stele.dev/cluster={cluster}")
    body = manifest(f"{cluster}-bulk", found, image or _image(pods), memory, _pull_secrets(pods))
    pod = BulkPod(api, namespace, await api.create(PODS, namespace, body))
    try:
        await pod.until_ready()
        yield pod
    finally:
        await asyncio.shield(pod.delete())


def _image(pods: Sequence[Object]) -> str:
    for pod in pods:
        for container in pod["spec"]["containers"]:
            if "stele-member" in container["image"]:
                return str(container["image"]).replace("stele-member", "stele-sql")
    raise BadInput("the image to run Spark with cannot be told from the members' image: name it with --image")


def _pull_secrets(pods: Sequence[Object]) -> list[Object]:
    """What any of these pods names."""
    names = [each["name"] for pod in pods for each in pod["spec"].get("imagePullSecrets") or ()]
    return [{"name": name} for name in dict.fromkeys(names)]


def _waiting_for(status: Object) -> str:
    told = [f"phase {status.get('phase', 'Pending')}"]
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or (each.get("state") or {}).get("terminated")
        if waiting:
            told.append(f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip())
    told += [c["message"] for c in status.get("conditions") or () if c["status"] != "True" and "message" in c]
    return "; ".join(told)[:500]


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Raise BadInput for what the disk here says; the connection's errors are not its."""
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


def _error(facts: dict[str, str]) -> SteleError:
    kind = BadInput if facts.get("code") in ("BAD_INPUT", "TOO_LARGE") else SteleError
    return kind(facts.get("detail", ""), facts.get("code"))
