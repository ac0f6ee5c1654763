"""What `kubectl_complete-stele` offers."""

import asyncio
from pathlib import Path

import pytest

from stele.cli import completion
from stele.cli.completion import FILES, NO_FILES, complete
from tests.cli.served_objects import cluster, listing, member, plan
from tests.fakes.pod_proxy import kubeconfig
from tests.member.harness.cluster import free_ports

STORED = {
    "tabletclusters": [cluster(), cluster("other")],
    "tabletmembers": [member(0), member(1)],
    "tabletrebalances": [plan()],
}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["status", ""], ["demo", "other"]),
        (["status", "d"], ["demo"]),
        (["rollout", "pause", "o"], ["other"]),
        (["logs", "demo", "demo-"], ["demo-0", "demo-1"]),
        (["drain", ""], ["demo-0", "demo-1"]),
        (["move", "demo", "3", "--to", "demo-1"], ["demo-1"]),
        (["copies", "--cluster", ""], ["demo", "other"]),
        (["approve", ""], ["demo-4-1"]),
        (["cancel", "--roll-back", "demo-4"], ["demo-4-1"]),
        (["status", "-n", "ns", "d"], ["demo"]),
        (["status", "-n", "far", "d"], []),
        (["status", "-nfar", "d"], []),
        (["-n=far", "status", "d"], []),
        (["status", "--namespace=ns", "d"], ["demo"]),
        (["status", "--namespace=far", "d"], []),
        (["why", ""], ["demo", "demo-0", "demo-1", "other"]),
        (["why", "demo-"], ["demo-0", "demo-1"]),
    ],
)
async def test_names_are_those_of_the_cluster(tmp_path: Path, words: list[str], offered: list[str]) -> None:
    async with listing(tmp_path, lambda: STORED) as path:
        given = ["--kubeconfig", str(path), *words]
        assert await asyncio.to_thread(complete, given) == (offered, NO_FILES)


def test_commands_options_and_choices_need_no_cluster() -> None:
    found, directive = complete(["ro"])
    assert directive == NO_FILES
    assert [each.split("\t")[0] for each in found] == ["rollout"]
    assert [each.split("\t")[0] for each in complete(["rollout", "re"])[0]] == ["resume", "restart"]
    assert complete(["status", "--al"]) == (["--all-namespaces"], NO_FILES)
    assert complete(["status", "-o", ""]) == (["json", "wide", "yaml"], NO_FILES)
    assert complete(["state", "demo", "P"]) == (["Passive"], NO_FILES)
    assert complete(["load", ""]) == ([], FILES)
    assert complete(["plan", "--offline", ""]) == ([], FILES)
    assert complete(["status", "--kubeconfig", ""]) == ([], FILES)
    assert complete(["no-command", ""])[1] == NO_FILES
    assert complete([])[0]


async def test_a_kubeconfig_is_taken_in_either_form(tmp_path: Path) -> None:
    async with listing(tmp_path, lambda: STORED) as path:
        words = [f"--kubeconfig={path}", "status", "o"]
        assert await asyncio.to_thread(complete, words) == (["other"], NO_FILES)


def test_a_playground_that_cannot_run_offers_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completion, "missing_modules", lambda: ["kopf"])
    monkeypatch.setattr("sys.argv", ["kubectl_complete-stele", "playground", ""])
    assert completion.main() == 0
    assert capsys.readouterr() == (":4\n", "")


def test_a_cluster_that_does_not_answer_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(kubeconfig(tmp_path, f"http://127.0.0.1:{free_ports(1)[0]}"))
    monkeypatch.setattr("sys.argv", ["kubectl_complete-stele", "status", "--kubeconfig", path, ""])
    assert completion.main() == 0
    assert capsys.readouterr() == (":4\n", "")
