"""Input that people give: read as promised, or refused in a sentence with the line's number."""

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


@pytest.mark.parametrize(
    ("name", "text", "records"),
    [
        (
            "d.jsonl",
            '{"key": "a", "value": "x"}\n\n{"key": 7, "value": {"n": 1}}\n',
            {"a": "x", "7": '{"n": 1}'},
        ),
        ("d.jsonl", '{"name": "ä", "n": 1}', {"ä": '{"name": "ä", "n": 1}'}),
        ("d.jsonl", '{"n": 1}\n[2]\n', {"line-000000001": '{"n": 1}', "line-000000002": "[2]"}),
        ("d.csv", 'id,name\r\n1,x\r\n2,"a,b"\r\n', {"1": "x", "2": '"a,b"'}),
        ("d.csv", "city,people\nbern,134\n", {"bern": "134"}),
        ("d.csv", "bern,134\nbasel,173\n", {"bern": "134", "basel": "173"}),
        ("d.csv", f"a,{'x' * 200_000}\nb,y\n", {"a": "x" * 200_000, "b": "y"}),
        ("d", '{"id": 1}\n', {"1": '{"id": 1}'}),
        ("d", "x,y\n", {"x": "y"}),
    ],
)
def test_files_are_read_by_suffix_or_first_line(
    tmp_path: Path, name: str, text: str, records: dict[str, str]
) -> None:
    wanted = {key.encode(): value.encode() for key, value in records.items()}
    assert given(tmp_path, name, text).values == wanted


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
