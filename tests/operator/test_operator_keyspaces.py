"""Keyspace objects from the manifest to the members, and back out, while clients use them."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from e2e.cluster.control_plane import documents
from stele.adapters.kubernetes.api import KEYSPACES, Api
from tests.fakes.objects import body
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes
from tests.operator.test_planned_stops import RESP_PORT

pytestmark = pytest.mark.control_plane

WRITERS = 4
QUOTA = 50


def keyspace(**spec: Any) -> dict[str, Any]:
    return body(KEYSPACES, "sessions", {"cluster": "demo", "onDelete": "Drop", **spec})


class Scene:
    """A cluster of processes, and clients of its members."""

    def __init__(self, stage: Stage, kubelet: RealKubelet) -> None:
        self.stage = stage
        self._hosts = itertools.cycle(kubelet.addresses.values())

    async def kubectl(self, *arguments: str, manifest: dict[str, Any] | None = None) -> str:
        """Run kubectl, which must succeed; `diff` does when nothing would change."""
        text = None if manifest is None else documents(manifest)
        given = (*arguments, "-n", self.stage.namespace, *(() if manifest is None else ("-f", "-")))
        return await asyncio.to_thread(self.stage.operator.plane.kubectl, *given, stdin=text)

    async def stored(self) -> dict[str, Any]:
        return await self.stage.api.get(KEYSPACES, self.stage.namespace, "sessions")

    async def ready(self) -> None:
        await self.kubectl("wait", "--for=condition=Ready", "--timeout=30s", "keyspace/sessions")

    async def client(self, keyspace: str = "sessions") -> redis.asyncio.Redis:
        made = redis.asyncio.Redis(host=next(self._hosts), port=RESP_PORT, single_connection_client=True)
        await made.execute_command("SELECT", keyspace)
        return made

    async def until(self, what: str, check: Callable[[], Awaitable[object]]) -> None:
        async def checked() -> bool:
            return bool(await check())

        await self.stage.until(what, checked)


async def test_a_manifest_can_be_applied_again_and_again(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    manifest = keyspace(ttl=3600, quota={"bytes": "2Gi"}, nearCache={"bytes": "1Mi", "seconds": 5})
    async with with_processes(api, namespace, operator, real_kubelet) as stage:
        scene = Scene(stage, real_kubelet)
        await scene.kubectl("apply", manifest=manifest)
        await scene.ready()
        before = await scene.stored()
        assert before["metadata"]["finalizers"] == ["stele.dev/drop-entries"]
        assert "unchanged" in await scene.kubectl("apply", manifest=manifest)
        assert await scene.kubectl("diff", manifest=manifest) == ""
        assert (await scene.stored())["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        for _ in range(2):
            await scene.kubectl("apply", "--server-side", "--field-manager=gitops", manifest=manifest)
            assert (
                await scene.kubectl("diff", "--server-side", "--field-manager=gitops", manifest=manifest)
                == ""
            )
        after = await scene.stored()
        assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
        assert after["spec"] == before["spec"]
        assert after["status"] == before["status"], "nobody wrote, so there is nothing to tell"
        columns = (await scene.kubectl("get", "ks", "--no-headers")).split()
        assert columns[:5] == ["sessions", "demo", "sessions", "Distributed", "Sync"]
        assert columns[5:8] == ["0", "0", "True"]


async def error_of(client: redis.asyncio.Redis, *command: str) -> str:
    """Return the error that a command is answered with, empty for none."""
    try:
        await client.execute_command(*command)
    except redis.exceptions.ResponseError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.long
async def test_a_quota_is_kept_and_shown(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    async with with_processes(api, namespace, operator, real_kubelet) as stage:
        scene = Scene(stage, real_kubelet)
        await scene.kubectl("apply", manifest=keyspace(quota={"entries": QUOTA}))
        await scene.ready()
        client, numbers = await scene.client(), itertools.count()
        await scene.until("a refusal", lambda: error_of(client, "SET", f"key-{next(numbers)}", "value"))
        text = await error_of(client, "SET", "key", "value")
        assert text.startswith("OutOfMemoryError: keyspace sessions has reached its quota of 50 entries")
        written = next(numbers) - 1
        assert QUOTA <= await client.dbsize() <= written
        await scene.kubectl("wait", "--for=condition=QuotaReached", "--timeout=60s", "keyspace/sessions")
        shown = await scene.kubectl(
            "get", "ks", "sessions", "-o", "jsonpath={.status.entries} {.status.bytes}"
        )
        assert [int(each) >= QUOTA for each in shown.split()] == [True, True]
        for number in range(written):
            await client.delete(f"key-{number}")

        async def allowed() -> bool:
            return not await error_of(client, "SET", "key", "value")

        await scene.until("room again", allowed)
        await client.aclose()


class Writers:
    """Clients that each write one new key after the other; `deleted` is set when the object is gone."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.deleted = self.over = False
        self.early: list[str] = []
        self.late: list[str] = []

    async def run(self, writer: int) -> None:
        client = await self._scene.client()
        for number in itertools.count():
            if self.over:
                break
            keys, key = self.late if self.deleted else self.early, f"{writer}-{number}"
            await client.set(key, key)
            keys.append(key)
        await client.aclose()


async def test_a_keyspace_is_deleted_while_clients_write(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    """What was written before is gone everywhere, what is written afterwards stays."""
    async with with_processes(api, namespace, operator, real_kubelet) as stage:
        scene = Scene(stage, real_kubelet)
        await scene.kubectl("apply", manifest=keyspace(ttl=3600))
        await scene.ready()
        client, writers = await scene.client(), Writers(scene)
        before = {f"before-{number}": "value" for number in range(300)}
        for key, value in before.items():
            await client.set(key, value)
        running = [asyncio.create_task(writers.run(number)) for number in range(WRITERS)]
        await scene.kubectl("delete", "--timeout=60s", "keyspace/sessions")
        writers.deleted = True
        await asyncio.sleep(1.0)
        writers.over = True
        await asyncio.gather(*running)
        assert len(writers.early) > WRITERS
        assert len(writers.late) > WRITERS
        assert await client.exists(*before) == 0
        assert await client.mget(writers.late) == [key.encode() for key in writers.late]
        assert await client.ttl(writers.late[-1]) == -1, "the settings went with the object"
        left = sum(value is not None for value in await client.mget(writers.early))
        assert await client.dbsize() == left + len(writers.late)
        await client.aclose()


@pytest.mark.long
async def test_a_cluster_can_refuse_what_is_not_declared(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    async with with_processes(api, namespace, operator, real_kubelet) as stage:
        scene = Scene(stage, real_kubelet)
        await scene.kubectl("apply", manifest=keyspace())
        await scene.ready()
        client, other = await scene.client(), await scene.client("other")
        await other.set("key", "value")
        await stage.change_spec(keyspaces={"undeclared": "Refuse"})

        await scene.until("a refusal", lambda: error_of(other, "GET", "key"))
        text = await error_of(other, "GET", "key")
        assert "keyspace other is not declared: create a Keyspace with this name" in text
        assert await client.set("key", "value")
        await scene.kubectl("apply", manifest=body(KEYSPACES, "other", {"cluster": "demo"}))

        async def allowed() -> bool:
            return not await error_of(other, "GET", "key")

        await scene.until("leave to use it", allowed)
        assert await other.get("key") == b"value"
        await client.aclose()
        await other.aclose()


async def test_a_keyspace_gets_partitions_of_its_own(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    """One that is new, and one that clients use already: it stays where it is until it is empty."""
    async with with_processes(api, namespace, operator, real_kubelet) as stage:
        scene = Scene(stage, real_kubelet)
        client, other = await scene.client(), await scene.client("other")
        await other.set("key", "value")
        manifest = keyspace(placement={"partitions": 5, "replicas": 3})
        await scene.kubectl("apply", manifest=manifest)
        await scene.kubectl(
            "apply",
            manifest=body(
                KEYSPACES, "other", {"cluster": "demo", "mode": "Replicated", "reads": "Available"}
            ),
        )
        await scene.ready()
        assert (await scene.stored())["status"]["placement"] == {"partitions": 5, "replicas": 3}
        assert await scene.kubectl("diff", manifest=manifest) == ""
        for number in range(50):
            assert await client.set(f"key-{number}", str(number))
        assert await client.dbsize() == 50
        reason = "jsonpath={.status.conditions[?(@.type=='Stalled')].reason}"

        async def refused() -> bool:
            return await scene.kubectl("get", "ks", "other", "-o", reason) == "NotEmpty"

        await scene.until("a refusal", refused)
        await scene.until("an answer", lambda: answered(other, "key"))
        assert await other.get("key") == b"value"
        assert await other.delete("key") == 1
        await scene.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "keyspace/other")
        assert await other.set("key", "later")
        shown = await scene.kubectl("get", "ks", "other", "-o", "jsonpath={.status.placement}")
        assert shown == '{"partitions":4,"replicas":3}'
        await client.aclose()
        await other.aclose()


async def answered(client: redis.asyncio.Redis, key: str) -> bool:
    """Return whether a key is read without an error."""
    return not await error_of(client, "GET", key)
