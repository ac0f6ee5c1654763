"""What `plan --offline` says to input that is wrong: the path, the value, what is expected; exit code 2."""

import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stele.cli import plan_file
from stele.core.table.ids import MEMBERS_MAX, PARTITIONS_MAX
from tests.cli.conftest import Ran, Run

GOOD: dict[str, Any] = {
    "partitions": 3,
    "replicas": 2,
    "members": [
        {"name": "a", "weight": 1, "zone": "z", "lite": False, "leaving": False},
        {"name": "b"},
        {"name": "c"},
    ],
    "current": [["a", "b"], ["b", None], []],
    "moves": [{"partition": 0, "source": "a", "destination": "c"}],
}
REMOVED = object()


def changed(*path: str | int, to: Any = REMOVED) -> dict[str, Any]:
    made = deepcopy(GOOD)
    at: Any = made
    for part in path[:-1]:
        at = at[part]
    if to is REMOVED:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return made


def refused(run: Run, text: bytes, *arguments: str) -> str:
    ran = run(*(arguments or ("plan", "--offline", "-")), stdin=text)
    check_refused(ran)
    return ran.err


def check_refused(ran: Ran) -> None:
    assert ran.code == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.startswith("kubectl stele: ")


def test_the_example_is_good(run: Run) -> None:
    assert run("plan", "--offline", "-", stdin=json.dumps(GOOD).encode()).code == 0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "$ is a list of 0; expected an object with the keys"),
        (None, "$ is null; expected an object"),
        (changed("partitions"), "$.partitions is missing; expected a whole number from 1 to 65536"),
        (changed("partitions", to=True), "$.partitions is true; expected a whole number"),
        (changed("partitions", to=3.0), "$.partitions is 3.0; expected a whole number"),
        (changed("partitions", to="3"), '$.partitions is "3"; expected a whole number'),
        (changed("partitions", to=0), "$.partitions is 0; expected a whole number from 1 to 65536"),
        (changed("partitions", to=PARTITIONS_MAX + 1), "$.partitions is 65537; expected"),
        (changed("partitions", to=math.nan), "$.partitions is NaN; expected"),
        (changed("partitions", to=math.inf), "$.partitions is Infinity; expected"),
        (changed("partitions", to=10**400), "$.partitions is 1000000000"),
        (changed("partitions", to=4), "$.current is a list of 3; $.partitions is 4: give one row for each"),
        (changed("replicas", to=8), "$.replicas is 8; expected a whole number from 1 to 7"),
        (changed("replicas", to=0), "$.replicas is 0; expected"),
        (changed("partition", to=3), '$.partition is unknown; did you mean "partitions"?'),
        (changed("x", to=3), "$.x is unknown; known keys are partitions, replicas, members, current, moves"),
        (changed("a b", to=3), '$["a b"] is unknown'),
        (changed("members", to=[]), "$.members is a list of 0; expected a list of 1 to 1000 members"),
        (changed("members", to={}), "$.members is an object of 0 keys; expected a list"),
        (
            changed("members", to=[{"name": f"m{n}"} for n in range(MEMBERS_MAX + 1)]),
            "$.members is a list of 1001",
        ),
        (changed("members", 1, to="b"), '$.members[1] is "b"; expected an object such as {"name": "a"'),
        (changed("members", 1, "name"), "$.members[1].name is missing; expected a string"),
        (changed("members", 1, "name", to=""), '$.members[1].name is ""; expected a string of 1 to 253'),
        (changed("members", 1, "name", to="x" * 254), '$.members[1].name is "xxxx'),
        (changed("members", 1, "name", to="a\nb"), '$.members[1].name is "a\\nb"; expected a string'),
        (changed("members", 1, "name", to="\ud800"), '$.members[1].name is "\\ud800"; expected'),
        (changed("members", 1, "name", to="a"), '$.members[1].name is "a"; $.members[0] has the same name'),
        (
            changed("members", 2, "weight", to=0),
            "$.members[2].weight is 0; expected a whole number from 1 to 1000000",
        ),
        (changed("members", 2, "weight", to=None), "$.members[2].weight is null; expected"),
        (changed("members", 2, "weight", to=10**7), "$.members[2].weight is 10000000; expected"),
        (changed("members", 2, "wieght", to=1), '$.members[2].wieght is unknown; did you mean "weight"?'),
        (changed("members", 2, "zone", to=""), '$.members[2].zone is ""; expected'),
        (changed("members", 2, "zone", to=1), "$.members[2].zone is 1; expected a string"),
        (changed("members", 2, "lite", to=1), "$.members[2].lite is 1; expected true or false"),
        (changed("members", 1, "lite", to=True), '$.current[0][1] is "b"; lite members hold no replica'),
        (changed("members", 2, "away", to=1), "$.members[2].away is 1; expected true or false"),
        (
            {**GOOD, "members": [*GOOD["members"], {"name": "z", "away": True, "leaving": True}]},
            ".away is true; a member that is leaving is not waited for",
        ),
        (
            {**GOOD, "members": [{**each, "away": True} for each in GOOD["members"][:2]]},
            ", which is away: nothing can be moved until it is back",
        ),
        (changed("current", to=None), "$.current is null; expected a list with one row for each partition"),
        (changed("current", 1, to="ab"), '$.current[1] is "ab"; expected a row'),
        (changed("current", 1, to=[None] * 8), "$.current[1] is a list of 8; expected a row of at most 7"),
        (
            changed("current", 1, to=["a", 1]),
            "$.current[1][1] is 1; expected null for an empty index, or the name",
        ),
        (changed("current", 1, to=["a", "b", "a"]), '$.current[1][2] is "a"; index 0 of the row too'),
        (changed("current", 1, to=["gone", "gone"]), '$.current[1][1] is "gone"; index 0'),
        (changed("current", 1, to=["\x00"]), '$.current[1][0] is "\\u0000"; expected'),
        (changed("current", 1, to=["\ud800"]), '$.current[1][0] is "\\ud800"; expected'),
        (changed("moves", to={}), "$.moves is an object of 0 keys; expected a list"),
        (changed("moves", 0, "partition", to=3), "$.moves[0].partition is 3; the partitions are 0 to 2"),
        (changed("moves", 0, "partition", to=-1), "$.moves[0].partition is -1; expected a whole number"),
        (
            changed("moves", 0, "source", to="A"),
            '$.moves[0].source is "A"; no entry of $.members has this name',
        ),
        (
            changed("moves", 0, "to", to="a"),
            "$.moves[0].to is unknown; known keys are partition, source, destination",
        ),
        ({**GOOD, "\ud800": 1}, "$ has a key that is not valid text"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_fault_is_told_with_its_path(run: Run, value: object, said: str) -> None:
    assert said in refused(run, json.dumps(value).encode())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "standard input: no content at line 1, column 1"),
        (b"{\n  'a': 1}", "invalid JSON at line 2, column 3"),
        (b'{"partitions": 3,}', "invalid JSON at line 1, column"),
        (b'{"partitions": 3} x', "invalid JSON at line 1, column 19"),
        (b"\xff\xfe{}", "byte 0 (line 1) is not UTF-8"),
        (b'{\n"a": "\xff"}', "byte 8 (line 2) is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5_000, "$ is Infinity; expected an object"),
        (b'{"replicas": 1, "replicas": 2}', "$.replicas is repeated; give each key once"),
        (b'{"members": [{}, {"name": "a", "name": "b"}]}', "$.members[1].name is repeated"),
        (b'{"a": {"b": 1, "b": 2}, "a": 1}', "$.a is repeated"),
    ],
)
def test_text_that_is_no_json_is_told_with_its_place(run: Run, text: bytes, said: str) -> None:
    assert said in refused(run, text)


def test_several_faults_are_told_together_and_counted(run: Run) -> None:
    value = changed("members", to=[{"name": 1, "weight": 0}] * 15)
    said = refused(run, json.dumps(value).encode())
    assert "standard input has 30 faults" in said
    assert "and 10 more" in said
    assert said.count("\n") == 22


def test_a_byte_order_mark_is_accepted(run: Run) -> None:
    assert run("plan", "--offline", "-", stdin=b"\xef\xbb\xbf" + json.dumps(GOOD).encode()).code == 0


def test_files_that_cannot_be_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "none.json")
    assert "none.json cannot be read: No such file" in refused(run, b"", "plan", "--offline", missing)
    assert "cannot be read: Is a directory" in refused(run, b"", "plan", "--offline", str(tmp_path))
    assert "cannot be read: embedded null" in refused(run, b"", "plan", "--offline", "a\0b")
    monkeypatch.setattr(plan_file, "INPUT_BYTES_MAX", 10)
    assert "TOO_LARGE: standard input has more than 10 bytes" in refused(run, b" " * 11)
    assert "no content at line 1" in refused(run, b" " * 10)


def paths(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [path for key, each in inner for path in paths(each, (*at, key))]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["a", "b", "c", 0, 1, 2, 65_536, 2**63, 10**300]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "weight", "zone", "partition"]) | st.text(max_size=4), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(paths(GOOD)), ANYTHING)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_any_place_is_planned_or_refused(
    run: Run, path: tuple[str | int, ...], value: object
) -> None:
    check_answered(
        run("plan", "--offline", "-", "-o", "json", stdin=json.dumps(changed(*path, to=value)).encode())
    )


@given(st.binary(max_size=60) | ANYTHING.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused(run: Run, text: bytes) -> None:
    check_refused(run("plan", "--offline", "-", stdin=text))


@given(st.integers(0, 10**6), st.integers(0, 255))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_byte_is_planned_or_refused(run: Run, place: int, byte: int) -> None:
    text = bytearray(json.dumps(GOOD).encode())
    text[place % len(text)] = byte
    check_answered(run("plan", "--offline", "-", stdin=bytes(text)))


def check_answered(ran: Ran) -> None:
    if ran.code == 0:
        assert ran.out
        assert ran.err == ""
    else:
        check_refused(ran)
