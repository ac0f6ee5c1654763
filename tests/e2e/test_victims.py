"""Which process is killed."""

from typing import Any

import pytest

from e2e.demo.errors import DemoError
from e2e.demo.victims import container_of, main_process

LISTING = "TASK    PID    STATUS    \nabc1    4711   RUNNING\nabc2    4712   STOPPED\n"


def pod(state: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "member", "containerID": "containerd://abc1", "ready": True, "state": state}
    return {
        "metadata": {"name": "demo-0", "namespace": "n", "uid": "u"},
        "spec": {"nodeName": "node"},
        "status": {"containerStatuses": [{"name": "transfer", "state": {"running": {}}}, status]},
    }


def test_the_one_process_of_the_container() -> None:
    victim = container_of(pod({"running": {}}), "member")
    assert (victim.node, main_process(LISTING, victim.identity)) == ("node", 4711)


def test_a_container_that_does_not_run_is_no_victim() -> None:
    with pytest.raises(DemoError, match="does not run"):
        container_of(pod({"waiting": {}}), "member")


@pytest.mark.parametrize("identity", ["containerd://abc2", "containerd://abc", "containerd://other"])
def test_no_other_process_is_taken_instead(identity: str) -> None:
    with pytest.raises(DemoError, match="no running process"):
        main_process(LISTING, identity)
