"""The command line: help, what pages say, and mistakes of users."""

import importlib.util
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from stele.adapters.kubernetes.api import CLUSTERS
from stele.errors import BadInput
from stele.playground.cluster import Engine, Wanted, ensure_cluster
from stele.playground.folder import CONTENT, held, remove, socket_of
from stele.playground.main import app, main
from stele.playground.objects import ObjectFiles
from stele.playground.ports import address_of, choose_ports
from tests.guard.pages import blocks
from tests.guard.test_documented_commands import _refusal

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, capsys: Any) -> None:
    assert main([command, "--help"]) == 0
    assert f"  kubectl stele playground {command}" in capsys.readouterr().out


def test_commands_of_pages_are_taken() -> None:
    found = [
        (page, match[1].split())
        for page, _, block in blocks()
        for match in re.finditer(r"kubectl[- ]stele playground ([^|#;&\n>]+)", block)
    ]
    assert len(found) > 5
    refused = {(page, *words): _refusal(get_command(app), words) for page, words in found}
    assert {place: why for place, why in refused.items() if why} == {}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status"], 3, "no playground runs in"),
        (["scale", "4"], 3, "start it with kubectl stele playground up"),
        (["scale", "0"], 2, "N is 0; expected 1 to 16"),
        (["scale", "17"], 2, "each member is two processes"),
        (["scale", "many"], 2, "valid integer"),
        (["kill", "demo-0", "--away", "-1"], 2, "--away"),
        (["load", "--clients", "65"], 2, "--clients"),
        (["down", "--yes"], 2, "there is no playground in"),
        (["up", "--members", "17"], 2, "--members is 17; expected 1 to 16"),
        (["up", "--partitions", "0"], 2, "spec.partitions is 0"),
        (["up", "--engine", "Flink"], 2, "--engine"),
        (["dance"], 2, "dance"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, words: list[str], code: int, said: str, capsys: Any) -> None:
    where = ["--dir", str(tmp_path / "pg")] if words != ["dance"] else []
    assert main([words[0], *where, *words[1:]]) == code
    assert said in capsys.readouterr().err


def test_pyspark_that_is_missing_is_named(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["up", "--engine", "Spark", "--dir", str(tmp_path / "pg")]) == 2
    said = capsys.readouterr().err
    assert "--engine Spark needs PySpark, which is not installed: pip install '.[playground,spark]'" in said
    assert not (tmp_path / "pg" / "cluster.yaml").exists()


@pytest.mark.parametrize(
    ("java", "said"),
    [
        ("", "there is none on the PATH or in JAVA_HOME"),
        ('openjdk version "11.0.2" 2019-01-15', "java is version 11"),
        ('java version "1.8.0_292"', "java is version 1"),
        ("not a Java", "there is none"),
    ],
)
def test_java_that_is_missing_or_too_old_is_named(
    tmp_path: Path, monkeypatch: Any, java: str, said: str, capsys: Any
) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "bin").mkdir()
    if java:
        program = tmp_path / "bin" / "java"
        program.write_text(f"#!/bin/sh\necho '{java}' >&2\n")
        program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["up", "--engine", "spark", "--dir", str(tmp_path / "pg")]) == 2
    shown = capsys.readouterr().err
    assert f"--engine Spark needs Java 17 or newer, and {said}" in shown
    assert "default-jre-headless, or use --engine Direct" in shown


def test_an_engine_that_a_playground_has_not_is_named(tmp_path: Path) -> None:
    files = ObjectFiles(tmp_path)
    ensure_cluster(files, Wanted())
    files.patch(CLUSTERS, "demo", {"spec": {"migration": {"engine": "Auto"}}})
    with pytest.raises(BadInput, match=r"cluster\.yaml is Auto; expected Direct or Spark"):
        ensure_cluster(files, Wanted())
    assert ensure_cluster(files, Wanted(engine=Engine.DIRECT))["spec"]["migration"]["engine"] == "Direct"


def test_a_folder_with_other_content_is_left_alone(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    assert main(["up", "--dir", str(tmp_path)]) == 2
    assert "which has thesis.txt" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]


def test_down_removes_what_a_playground_made_and_nothing_else(tmp_path: Path) -> None:
    with held(tmp_path / "pg"):
        (tmp_path / "pg" / "volumes").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "pg" / "table").symlink_to(outside)
    (tmp_path / "pg" / "mine").write_text("kept")
    remove(tmp_path / "pg")
    assert [each.name for each in (tmp_path / "pg").iterdir()] == ["mine"]
    assert outside.exists()
    assert "volumes" in CONTENT


def test_a_path_that_no_socket_can_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"may have 100; choose a shorter folder"):
        socket_of(tmp_path / ("x" * 100))


def test_ports_stay_unless_somebody_took_one(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = choose_ports(file)
    assert choose_ports(file) == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.peer))
        taken.listen()
        other = choose_ports(file)
    assert first.peer not in json.loads(file.read_text()).values()
    assert choose_ports(file) == other
    file.write_text("{}")
    made = vars(choose_ports(file)).values()
    assert len(set(made)) == len(made)


def test_each_member_has_an_address_of_loopback() -> None:
    addresses = [address_of(each) for each in range(1000)]
    assert addresses[0] == "127.0.0.1"
    assert len(set(addresses)) == 1000
    assert all(each.startswith("127.") for each in addresses)
