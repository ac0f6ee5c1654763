"""Lines of a log as JSON: what they name, their limit, and what people see of them."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from stele.adapters.json_lines import LINE_BYTES_MAX, JsonFormatter, decode, text_of
from stele.member import limits
from stele.member.admin.audit import Asked, _line

ABOUT = {"namespace": "shop", "cluster": "demo", "member": "demo-0", "epoch": 7}
NOON_SECONDS = datetime(2026, 1, 2, 12, 0, 0, 250_000, tzinfo=UTC).timestamp()


def written(
    template: str, *values: object, name: str = "stele.x", error: Any = None, about: Any = ABOUT
) -> dict[str, Any]:
    """The fields of a line, as a strict reader finds them."""
    record = logging.LogRecord(name, logging.INFO, "x.py", 1, template, values, error and (error,) * 3)
    if error:
        record.exc_info = (type(error), error, error.__traceback__)
    record.created = NOON_SECONDS
    line = JsonFormatter(lambda: about).format(record)
    assert len(line.encode()) + 1 <= LINE_BYTES_MAX
    assert line.isascii()
    assert line.isprintable()
    assert decode(line) == json.loads(line)
    found: dict[str, Any] = msgspec.json.decode(line)
    return found


def test_a_line_says_when_how_bad_where_what_and_about_whom() -> None:
    assert written("partition %d: fenced below term %d", 17, 3) == {
        "timestamp": "2026-01-02T12:00:00.250Z",
        "level": "INFO",
        "logger": "stele.x",
        "message": "partition 17: fenced below term 3",
        "partition": 17,
        **ABOUT,
    }


def test_a_line_about_others_than_its_work_names_those() -> None:
    work = {**ABOUT, "partition": 17, "migration": "7-1", "session": "a"}
    line = written("session %s of partition %d ends", "b", 99, about=work)
    assert (line["session"], line["partition"], line["migration"]) == ("b", 99, "7-1")
    assert written("member %d is silent", 2, about=work)["member"] == "demo-0"


def test_what_a_line_is_about_is_cut() -> None:
    assert written("begins", about={"migration": "\ud800" + "m" * 100_000})["migration"].endswith("m")


@pytest.mark.parametrize(
    ("template", "values", "named"),
    [
        ("started", (), {}),
        ("partition %d: no master ends migration %s", (3, "7-1"), {"partition": 3, "migration": "7-1"}),
        ("partition %d: partition %d decides", (3, 4), {"partition": 3}),
        ("%d %% of session %s", (5, "s-1"), {"session": "s-1"}),
        ("%.1f s, partition %5d", (0.5, 9), {"partition": 9}),
        ("%s: partition 9", ("partition %d",), {}),
        ("partition %s", (None,), {}),
        ("partitions %s", ("1, 2",), {}),
        ("member %d at %s", (2, "host"), {}),
        ("session %s", ("s" * 1000,), {"session": "s" * 100}),
    ],
)
def test_what_a_template_names_is_a_field(template: str, values: tuple[object, ...], named: Any) -> None:
    found = written(template, *values)
    fixed = {"timestamp", "level", "logger", "message", *ABOUT}
    assert {name: value for name, value in found.items() if name not in fixed} == named
    assert found["member"] == "demo-0", "a member that is not its own is no field"


def test_lines_of_others_name_nothing() -> None:
    assert "partition" not in written("partition %d", 5, name="kafka")


def raised(text: str) -> BaseException:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "text",
    [
        "x" * 20 * LINE_BYTES_MAX,
        "\x00" * LINE_BYTES_MAX,
        "\U0001f600" * LINE_BYTES_MAX,
        "\ud800" * LINE_BYTES_MAX,
        '"\\' * LINE_BYTES_MAX,
    ],
    ids=["letters", "zeros", "emoji", "surrogates", "quotes"],
)
def test_a_long_line_keeps_the_begin_of_its_message_and_the_end_of_its_exception(text: str) -> None:
    found = written("first %s", text, error=raised(f"{text} last"))
    assert found["message"].startswith("first ")
    assert found["message"].endswith(" characters are left out)")
    assert found["exception"].startswith("(")
    assert found["exception"].endswith(" last")
    assert len(json.dumps(found)) > LINE_BYTES_MAX // 4, "not more is left out than has to be"


def test_an_exception_is_a_text_and_nothing_of_others_makes_a_second_line() -> None:
    found = written("bad\nname %s", "\x1b[2J\r\n\u2028", error=raised("no\nway"))
    assert found["message"] == "bad\nname \x1b[2J\r\n\u2028"
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert found["exception"].endswith("ValueError: no\nway")
    assert "exception" not in written("x", error=None)


def test_half_a_letter_is_written_as_one_that_all_can_read() -> None:
    assert written("%s", b"\xff".decode(errors="surrogateescape"))["message"] == "\\udcff"


def test_a_line_of_the_audit_stays_what_it_was() -> None:
    target = "/v1/digest?partition=0" + "é" * limits.AUDIT_TARGET_CHARACTERS_MAX
    request: Any = type("Request", (), {"method": "GET", "rel_url": type("", (), {"raw_path_qs": target})})
    line = _line(request, Asked("anonymous 10.0.0.7", "/v1/digest", True), 403, 5)
    found = written("%s", line, name="stele.audit")
    assert json.loads(found["message"])["target"] == target[: limits.AUDIT_TARGET_CHARACTERS_MAX]
    assert json.loads(found["message"])["missing"] == 5


# -- what is read


@pytest.mark.parametrize(
    "line",
    [
        "",
        "2026-01-01 INFO x: {}",
        "{",
        "[]",
        '{"message": 5}',
        '{"level": "INFO"}',
        '{"a":' * (sys.getrecursionlimit() + 10),
        f'{{"message": {"1" * 5000}}}',
        '{"message": "x"} {}',
    ],
)
def test_anything_else_is_no_line_of_this_kind(line: str) -> None:
    assert decode(line) is None


def test_people_see_one_line_and_the_exception_below_it() -> None:
    found = written("partition %d: cannot\nread", 17, error=raised("no\nway"))
    first, *rest = text_of(found | {"migration": "7-1"})
    assert first == (
        "2026-01-02T12:00:00.250Z INFO stele.x: partition 17: cannot\\nread member=demo-0 epoch=7 "
        "migration=7-1"
    )
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest[-2:] == ["    ValueError: no", "    way"]


def test_hostile_fields_are_shown_too() -> None:
    (line,) = text_of({"message": "x", "level": ["a\nb"], "partition": {"c": "\n"}})
    assert line == " ['a\\nb'] : x partition={'c': '\\n'}"
