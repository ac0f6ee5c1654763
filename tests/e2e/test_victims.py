"""Which process is killed."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from e2e.demo.errors import DemoError
from e2e.demo.victims import container_of, kubelet_of, main_process, send, until_ended


def pod(state: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "member", "containerID": "containerd://abc1", "ready": True, "state": state}
    return {
        "metadata": {"name": "demo-0", "namespace": "n", "uid": "u"},
        "spec": {"nodeName": "node"},
        "status": {"containerStatuses": [{"name": "transfer", "state": {"running": {}}}, status]},
    }


@pytest.fixture
def processes(tmp_path: Path) -> Path:
    """As `/proc` shows them: a node's own, two of a container, one that is ending."""
    for number, group, inside in (
        (41, "/libpod-node", "41 1"),
        (4711, "/libpod-node/cri-containerd-abc1.scope", "4711 70 1"),
        (4712, "/libpod-node/cri-containerd-abc1.scope", "4712 71 9"),
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cgroup").write_text(f"0::{group}\n")
        (tmp_path / str(number) / "status").write_text(f"Name:\tx\nNSpid:\t{inside}\n")
    (tmp_path / "4713").mkdir()
    return tmp_path


def test_the_main_process_of_the_container(processes: Path) -> None:
    victim = container_of(pod({"running": {}}), "member")
    assert (victim.node, main_process(victim.identity, processes)) == ("node", 4711)


def test_the_kubelet_of_a_node_is_not_that_of_another(tmp_path: Path) -> None:
    for number, name, space in ((1, "systemd", "a"), (2, "kubelet", "b"), (3, "kubelet", "a")):
        (tmp_path / str(number) / "ns").mkdir(parents=True)
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
        (tmp_path / str(number) / "ns" / "pid").symlink_to(space)
    assert kubelet_of(1, tmp_path) == 3


async def test_the_end_of_a_process_is_waited_for() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    waiting = asyncio.create_task(until_ended(process.pid))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    send(process.pid, signal.SIGKILL)
    await asyncio.wait_for(waiting, 5.0)
    await process.wait()
    await until_ended(process.pid)
    with pytest.raises(DemoError, match="has ended"):
        send(process.pid, signal.SIGCONT)


def test_a_container_that_does_not_run_is_no_victim() -> None:
    with pytest.raises(DemoError, match="does not run"):
        container_of(pod({"waiting": {}}), "member")


@pytest.mark.parametrize("identity", ["containerd://abc2", "containerd://other"])
def test_no_other_process_is_taken_instead(identity: str, processes: Path) -> None:
    with pytest.raises(DemoError, match="no running process"):
        main_process(identity, processes)
