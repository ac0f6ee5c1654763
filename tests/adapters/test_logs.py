"""The log of a process: its format, its level, and the levels of single clusters."""

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextvars import Context
from typing import Any

import pytest

from stele.adapters import environment, logs
from stele.adapters.json_lines import JsonFormatter
from stele.adapters.logs import LogSettings
from stele.core.control.member_settings import LogLevel
from stele.errors import BadInput

log = logging.getLogger("stele.test")

PROGRAM = """
import logging, os, warnings
from stele.adapters import environment, logs
logs.start(environment.read(logs.LogSettings, os.environ))
log = logging.getLogger("stele.x")
log.info("partition %d: begins\\nhere", 5)
log.debug("not logged")
logging.getLogger("stele").warning("of Stele")
warnings.warn("old")
logs.name_epoch(lambda: 7)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
logs.fail("stele-x", "BAD_INPUT: no such thing")
raise ValueError("not expected")
"""


def said(**env: str) -> list[str]:
    """What the program says on standard error."""
    given = {"PYTHONPATH": ":".join(filter(None, sys.path)), **env}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


def test_each_line_of_a_process_in_a_pod_is_json() -> None:
    names = {"STELE_LOG_NAMESPACE": "shop", "STELE_LOG_CLUSTER": "demo", "STELE_LOG_MEMBER": "demo-0"}
    lines = [json.loads(line) for line in said(STELE_LOG_FORMAT="json", **names)]
    assert [(each["level"], each["logger"]) for each in lines] == [
        ("INFO", "stele.x"),
        ("WARNING", "stele"),
        ("WARNING", "py.warnings"),
        ("ERROR", "stele.x"),
        ("CRITICAL", "stele.process"),
        ("ERROR", "stele.process"),
        ("CRITICAL", "stele.process"),
    ]
    assert {(each["namespace"], each["cluster"], each["member"]) for each in lines} == {
        ("shop", "demo", "demo-0")
    }
    assert [each.get("epoch") for each in lines] == [None, None, None, 7, 7, 7, 7]
    assert [each["message"] for each in lines if each["level"] == "CRITICAL"] == [
        "BAD_INPUT: no such thing",
        "ending: unexpected ValueError: not expected",
    ]
    assert lines[0]["partition"] == 5
    assert lines[3]["exception"].endswith("ZeroDivisionError: division by zero")
    assert lines[-2]["exception"].endswith("ValueError: not expected")


def test_on_a_terminal_it_stays_text() -> None:
    lines = said(STELE_LOG_LEVEL="WARNING")
    assert not any("begins" in line for line in lines)
    assert lines[0].endswith(" WARNING stele: of Stele")
    assert "stele-x: BAD_INPUT: no such thing" in lines
    assert lines[-1] == "ValueError: not expected"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("STELE_LOG_LEVEL", "LOUD", "one of DEBUG, INFO, WARNING, ERROR"),
        ("STELE_LOG_FORMAT", "xml", "one of text, json"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is '{value}'; it must be {expected}"):
        environment.read(LogSettings, {name: value})


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Lines of Stele in this process, as its log has them; members that ran here before left nothing."""
    monkeypatch.setattr(logs, "_log", logs._Log())
    lines = list[dict[str, Any]]()
    stream, ours = io.StringIO(), logging.getLogger("stele")
    handler, before = logging.StreamHandler(stream), ours.level
    handler.setFormatter(JsonFormatter(logs.fields_now))
    handler.addFilter(logs.admits)
    handler.emit = lambda record: lines.append(json.loads(handler.format(record)))  # type: ignore[method-assign]
    ours.addHandler(handler)
    yield lines
    ours.removeHandler(handler)
    ours.setLevel(before)


def say(text: str) -> None:
    log.debug("%s debug", text)
    log.info("%s info", text)
    log.warning("%s warning", text)


def test_lines_about_a_cluster_have_its_level_and_others_that_of_the_process(
    shown: list[dict[str, Any]],
) -> None:
    logging.getLogger("stele").setLevel(logging.NOTSET)
    logs.follow_cluster("shop", "loud", LogLevel.DEBUG)
    logs.follow_cluster("shop", "quiet", LogLevel.WARNING)
    logs.follow_cluster("shop", "plain", LogLevel.INFO)
    say("none")
    for cluster in ("loud", "quiet", "plain"):
        with logs.about(namespace="shop", cluster=cluster):
            say(cluster)
    assert [each["message"] for each in shown] == [
        "none info",
        "none warning",
        "loud debug",
        "loud info",
        "loud warning",
        "quiet warning",
        "plain info",
        "plain warning",
    ]
    shown.clear()
    logs.follow_cluster("shop", "loud", None)
    logs.follow_cluster("shop", "quiet", LogLevel.INFO)
    assert logging.getLogger("stele").level == logging.NOTSET


async def test_tasks_that_begin_in_a_block_name_what_it_names(shown: list[dict[str, Any]]) -> None:
    async def loop() -> None:
        logs.note(epoch=3)
        await asyncio.sleep(0)
        log.warning("in the loop")

    with logs.about(namespace="shop", cluster="demo"):
        task = asyncio.create_task(loop())
    log.warning("outside")
    await task
    assert [(each["message"], each.get("cluster"), each.get("epoch")) for each in shown] == [
        ("outside", None, None),
        ("in the loop", "demo", 3),
    ]


async def test_what_is_given_up_changes_nothing_where_it_is_closed(shown: list[dict[str, Any]]) -> None:
    async def about_something() -> None:
        with logs.about(session="s1"):
            await asyncio.Event().wait()

    given_up = about_something()
    Context().run(given_up.send, None)
    given_up.close()
    log.warning("elsewhere")
    assert [each.get("session") for each in shown] == [None]
    assert logs.fields_now() == {}
