"""Input that people give: read as promised, or refused in a sentence with the line's number."""

import contextlib
import json
from pathlib import Path

import pytest

from e2e.demo import inputs
from e2e.demo.errors import PreflightError

STANZAS = b"Package: a\nVersion: 1\n\nPackage: b\nVersion: 1\n\nPackage: a\nVersion: 2\n\n"


def given(folder: Path, name: str, text: str | bytes) -> inputs.Records:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return inputs.read(path)


def test_the_last_version_of_a_package_wins_and_both_are_counted() -> None:
    records = inputs.collect("test", inputs.parse_packages(STANZAS))
    assert records.values == {b"a": b"Package: a\nVersion: 2", b"b": b"Package: b\nVersion: 1"}
    assert records.replaced == 1


def test_a_stanza_without_a_name_is_refused() -> None:
    with pytest.raises(PreflightError, match="Stanza 2"):
        list(inputs.parse_packages(b"Package: a\n\nVersion: 1\n"))


def test_json_lines_with_key_and_value(tmp_path: Path) -> None:
    text = '{"key": "a", "value": "x"}\n\n{"key": 7, "value": {"n": 1}}\n'
    assert given(tmp_path, "d.jsonl", text).values == {b"a": b"x", b"7": b'{"n": 1}'}


def test_json_lines_with_a_field_that_names_the_key(tmp_path: Path) -> None:
    lines = [json.dumps({"name": "ä", "n": n}) for n in range(2)]
    assert given(tmp_path, "d.jsonl", "\n".join(lines)).values == {"ä".encode(): lines[1].encode()}


def test_json_lines_without_a_key_are_numbered(tmp_path: Path) -> None:
    records = given(tmp_path, "d.jsonl", '{"n": 1}\n[2]\n')
    assert records.values == {b"line-000000001": b'{"n": 1}', b"line-000000002": b"[2]"}


def test_csv_with_a_header_by_name(tmp_path: Path) -> None:
    records = given(tmp_path, "d.csv", 'id,name\r\n1,x\r\n2,"a,b"\r\n')
    assert records.values == {b"1": b"x", b"2": b'"a,b"'}


def test_csv_with_a_header_by_its_numbers_and_without(tmp_path: Path) -> None:
    assert given(tmp_path, "a.csv", "city,people\nbern,134\n").values == {b"bern": b"134"}
    assert given(tmp_path, "b.csv", "bern,134\nbasel,173\n").values == {b"bern": b"134", b"basel": b"173"}


def test_the_first_line_decides_without_a_suffix(tmp_path: Path) -> None:
    assert given(tmp_path, "a", '{"id": 1}\n').values == {b"1": b'{"id": 1}'}
    assert given(tmp_path, "b", "x,y\n").values == {b"x": b"y"}


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("d.jsonl", '{"id": 1}\n{"id": \n', "line 2, column"),
        ("d.jsonl", '{"id": 1}\n{"n": 1}\n', "line 2 has no field 'id'"),
        ("d.jsonl", '{"id": null}\n', "line 1: the key"),
        ("d.jsonl", '{"key": "a", "value": 1}\n[]\n', "line 2 is not an object"),
        ("d.jsonl", '{"id": "\\ud800"}\n', "line 1 holds half a character"),
        ("d.json", '[\n{"id": 1}\n]\n', "jq -c"),
        ("d.jsonl", '{"id": 1}\n' + "[" * 200_000 + "]" * 200_000 + "\n", "line 2 is JSON with too many"),
        ("d.jsonl", '{"id": 1}\n{"id": ' + "7" * 5_000 + "}\n", "line 2 holds an integer of more than 4,300"),
        ("d.jsonl", '{"id": "a", "n": -' + "7" * 5_000 + "}\n", "line 1 holds an integer of more than 4,300"),
        (
            "d.csv",
            "a,1\nb," + "x" * (inputs.VALUE_BYTES_MAX + 1),
            "line 2 has a column of more than 8,388,608",
        ),
        ("d.csv", "a,1\nb\n", "line 2 has 1 columns"),
        ("d.csv", "a,1\n,2\n", "line 2 has an empty first column"),
        ("d.csv", 'a,1\nb,"2\n', "is not CSV"),
        ("d.csv", b"a,1\n\xff,2\n", "line 2 is not UTF-8"),
        ("d.csv", "", "holds no record"),
        ("d.jsonl", "\n\n", "holds no record"),
        ("d", "hello\n", "neither JSON nor has a comma"),
        ("d.csv", "k" * 70_000 + ",1\n", "key of 70000 bytes"),
    ],
)
def test_bad_files_are_refused_with_the_line(
    tmp_path: Path, name: str, text: str | bytes, complaint: str
) -> None:
    with pytest.raises(PreflightError, match=complaint):
        given(tmp_path, name, text)


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="does not exist"):
        inputs.read(tmp_path / "no.csv")
    with pytest.raises(PreflightError, match="cannot be read"):
        inputs.read(tmp_path)


def test_without_apt_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError, match="DATA=FILE"):
        inputs.read(None)


def test_a_column_that_is_longer_than_the_csv_module_reads_by_itself(tmp_path: Path) -> None:
    text = "x" * 200_000
    assert given(tmp_path, "d.csv", f"a,{text}\nb,y\n").values == {b"a": text.encode(), b"b": b"y"}


def test_large_numbers_and_moderate_depth_stay_as_they_are_written(tmp_path: Path) -> None:
    lines = [json.dumps({"id": "a", "n": 7**2_000}), '{"id": "b", "n": ' + "[" * 300 + "]" * 300 + "}"]
    records = given(tmp_path, "d.jsonl", "\n".join(lines))
    assert records.values == {b"a": lines[0].encode(), b"b": lines[1].encode()}


@pytest.mark.parametrize("depth", [2_000, 50_000])
def test_nesting_too_deep_for_python_is_refused_in_a_value_too(tmp_path: Path, depth: int) -> None:
    with pytest.raises(PreflightError, match="line 1 is JSON with too many"):
        given(tmp_path, "d.jsonl", '{"key": "a", "value": ' + "[" * depth + "]" * depth + "}")


def test_no_depth_of_nesting_ends_otherwise_than_read_or_refused(tmp_path: Path) -> None:
    for depth in range(900, 1_010, 2):
        with contextlib.suppress(PreflightError):
            nested = "[" * depth + "]" * depth
            records = given(tmp_path, "d.jsonl", '{"key": "a", "value": ' + nested + "}")
            assert records.values == {b"a": nested.encode()}
