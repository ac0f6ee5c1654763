"""Real input for the demo: Debian's package index, JSON lines or CSV, as records of key and value.

Each reader says with the line's number what it cannot read. Of several records with one key the last one
wins, as it would when they were written in this order; how many were replaced is counted.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from e2e.demo.errors import PreflightError

FILE_BYTES_MAX = 2 * 1024**3  # the records are kept in memory for the comparison
RECORDS_MAX = 2_000_000
KEY_BYTES_MAX = 64 * 1024  # limits of the store itself, docs/reference/protocol.md
VALUE_BYTES_MAX = 8 * 1024**2
APT_SECONDS_MAX = 120.0
INDEX_PACKAGES_MIN = 1_000
"""Debian's index has tens of thousands; fewer than these mean that this machine never fetched it."""
KEY_FIELDS = ("key", "id", "_id", "uuid", "name", "package", "Package")
HEADER_WORDS = frozenset(word.lower() for word in KEY_FIELDS)
TOO_DEEP = (
    "line {number} is JSON with too many lists or objects inside one another: "
    "nest them less deep, a few hundred levels are fine."
)
_JSON_SUFFIXES = frozenset({".jsonl", ".ndjson", ".json"})
_CSV_SUFFIXES = frozenset({".csv", ".tsv"})

Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class Records:
    """The input: values by key, where they came from, and how many records a later one replaced."""

    source: str
    values: dict[bytes, bytes] = field(repr=False)
    replaced: int = 0

    def first(self, count: int) -> Records:
        """The first `count` records, for a small run."""
        kept = dict(list(self.values.items())[:count])
        return Records(f"{self.source}, the first {len(kept)}", kept)


def read(path: Path | None) -> Records:
    """The records of a file, or of Debian's package index when no file is given."""
    return read_packages() if path is None else read_file(path)


def read_packages() -> Records:
    """What `apt-cache dumpavail` prints: key = name of the package, value = its whole stanza.

    A machine that never fetched the index lists only what is installed: it is fetched then, as root.
    """
    text = _dump_available()
    if text.count(b"\nPackage:") < INDEX_PACKAGES_MIN and os.geteuid() == 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["apt-get", "-qq", "update"], capture_output=True, timeout=APT_SECONDS_MAX, check=False
            )
        text = _dump_available()
    records = collect("apt-cache dumpavail", parse_packages(text))
    if not records.values:
        raise PreflightError(
            "apt-cache dumpavail lists no package: run apt-get update, or give data of your own, "
            "make demo DATA=FILE (JSON lines or CSV)."
        )
    return records


def _dump_available() -> bytes:
    try:
        done = subprocess.run(
            ["apt-cache", "dumpavail"], capture_output=True, timeout=APT_SECONDS_MAX, check=False
        )
    except FileNotFoundError:
        raise PreflightError(
            "apt-cache is not on this machine, so Debian's package index cannot be read: "
            "give data of your own, make demo DATA=FILE (JSON lines or CSV)."
        ) from None
    except subprocess.TimeoutExpired:
        raise PreflightError(f"apt-cache dumpavail did not end within {APT_SECONDS_MAX:.0f} s.") from None
    return done.stdout


def parse_packages(text: bytes) -> Iterator[Pair]:
    """Stanzas of a package index; each needs a field `Package`."""
    for number, stanza in enumerate(text.split(b"\n\n"), 1):
        if not stanza.strip():
            continue
        lines = stanza.split(b"\n")
        name = next((line[8:].strip() for line in lines if line.startswith(b"Package:")), b"")
        if not name:
            raise PreflightError(f"Stanza {number} of the package index has no field Package.")
        yield name, stanza.strip(b"\n")


def read_file(path: Path) -> Records:
    """The records of a JSON-lines or CSV file; the suffix decides, else the first line."""
    text = _text_of(path)
    parse: Callable[[str], Iterable[Pair]] = parse_json_lines if _is_json(path, text) else parse_csv
    if parse is parse_csv and path.suffix.lower() == ".tsv":
        parse = parse_tsv
    try:
        records = collect(str(path), parse(text))
    except ValueError as error:
        raise PreflightError(f"{path}: {error}") from error
    if not records.values:
        raise PreflightError(f"{path} holds no record: give a file with at least one line of JSON or CSV.")
    return records


def collect(source: str, pairs: Iterable[Pair]) -> Records:
    """Records by key, the last of each key; refuses what the store would refuse."""
    values: dict[bytes, bytes] = {}
    count = 0
    for key, value in pairs:
        count += 1
        _check_size(count, key, value)
        values[key] = value
        if len(values) > RECORDS_MAX:
            raise PreflightError(f"{source} has more than {RECORDS_MAX:,} records: give a smaller file.")
    return Records(source, values, count - len(values))


def _check_size(count: int, key: bytes, value: bytes) -> None:
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise PreflightError(
            f"Record {count} has a key of {len(key)} bytes: 1 to {KEY_BYTES_MAX:,} are allowed."
        )
    if len(value) > VALUE_BYTES_MAX:
        raise PreflightError(
            f"Record {count} has a value of {len(value):,} bytes: at most {VALUE_BYTES_MAX:,} are allowed."
        )


def parse_json_lines(text: str) -> Iterator[Pair]:
    """One JSON value a line; the first line decides for all.

    - objects with exactly the fields `key` and `value`: these;
    - objects with one of `KEY_FIELDS`: the first of them that is there is the key, the whole line the value;
    - anything else: the line's number is the key, the whole line the value.
    """
    rule: Callable[[int, str, object], Pair] | None = None
    for number, line in _lines(text):
        value = _json_of(number, line)
        rule = rule or _rule_for(value)
        yield rule(number, line, value)


def _json_of(number: int, line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(_json_complaint(number, line, error)) from None
    except RecursionError:
        raise ValueError(TOO_DEEP.format(number=number)) from None
    except ValueError:
        # Python refuses to make an integer of more digits, as that takes quadratic time.
        raise ValueError(
            f"line {number} holds an integer of more than {sys.get_int_max_str_digits():,} digits: "
            "write it as text, in quotes."
        ) from None


def _json_complaint(number: int, line: str, error: json.JSONDecodeError) -> str:
    if number == 1 and line.strip() in ("[", "{"):
        return (
            "line 1 opens a JSON document of many lines, one JSON value a line is needed: "
            "write it so, for instance with jq -c '.[]' FILE."
        )
    return f"line {number}, column {error.colno} is not JSON ({error.msg}): give one JSON value a line."


def _rule_for(value: object) -> Callable[[int, str, object], Pair]:
    if not isinstance(value, dict):
        return _by_number
    if set(value) == {"key", "value"}:
        return _by_key_and_value
    key_field = next((name for name in KEY_FIELDS if name in value), None)
    return _by_number if key_field is None else _by_field(key_field)


def _by_number(number: int, line: str, value: object) -> Pair:
    return f"line-{number:09d}".encode(), line.encode()


def _by_key_and_value(number: int, line: str, value: object) -> Pair:
    if not isinstance(value, dict) or set(value) != {"key", "value"}:
        raise ValueError(
            f"line {number} is not an object with the fields key and value, as line 1 is: "
            "make all lines alike."
        )
    content = value["value"]
    try:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    except RecursionError:
        raise ValueError(TOO_DEEP.format(number=number)) from None
    return _key_text(number, "key", value["key"]), _encode(number, text)


def _by_field(name: str) -> Callable[[int, str, object], Pair]:
    def rule(number: int, line: str, value: object) -> Pair:
        if not isinstance(value, dict) or name not in value:
            raise ValueError(
                f"line {number} has no field {name!r}, which is the key in line 1: make all lines alike."
            )
        return _key_text(number, name, value[name]), line.encode()

    return rule


def _key_text(number: int, name: str, key: object) -> bytes:
    if isinstance(key, bool) or not isinstance(key, str | int | float) or key == "":
        raise ValueError(
            f"line {number}: the key (field {name!r}) is {key!r}, a number or a non-empty text is needed."
        )
    return _encode(number, str(key))


def _encode(number: int, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"line {number} holds half a character (a lone surrogate): correct it.") from None


def parse_csv(text: str) -> Iterator[Pair]:
    """Comma-separated rows: key = first column, value = the other columns as CSV."""
    return _parse_rows(text, ",")


def parse_tsv(text: str) -> Iterator[Pair]:
    """The same, separated by tabs."""
    return _parse_rows(text, "\t")


def _parse_rows(text: str, delimiter: str) -> Iterator[Pair]:
    csv.field_size_limit(VALUE_BYTES_MAX)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = _numbered_rows(reader)
    first = next(rows, None)
    if first is None:
        return
    second = next(rows, None)
    if not is_header(first[1], second[1] if second else None):
        yield _pair_of(*first, len(first[1]), delimiter)
    for number, row in [second] if second else []:
        yield _pair_of(number, row, len(first[1]), delimiter)
    for number, row in rows:
        yield _pair_of(number, row, len(first[1]), delimiter)


def _numbered_rows(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    number = 0
    while True:
        number = getattr(reader, "line_num", number) + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "field limit" in str(error):
                raise ValueError(_field_complaint(number)) from None
            raise ValueError(f"line {number} is not CSV ({error}): correct it.") from None
        if row:
            yield number, row


def _field_complaint(number: int) -> str:
    return (
        f"line {number} has a column of more than {VALUE_BYTES_MAX:,} characters, or a quote that opens and "
        "does not close: shorten or correct it."
    )


def _pair_of(number: int, row: list[str], columns: int, delimiter: str) -> Pair:
    if len(row) != columns:
        raise ValueError(
            f"line {number} has {len(row)} columns, the first has {columns}: make all rows alike "
            "(a value with a comma needs quotes)."
        )
    if not row[0]:
        raise ValueError(f"line {number} has an empty first column, which is the key: fill it.")
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="").writerow(row[1:])
    return row[0].encode(), out.getvalue().encode()


def is_header(first: list[str], second: list[str] | None) -> bool:
    """Whether the first row names columns: its first cell is a usual name of a key, or it holds no number
    while the second row does."""
    if first[0].strip().lower() in HEADER_WORDS:
        return True
    return second is not None and not any(map(_is_number, first)) and any(map(_is_number, second))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _text_of(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise PreflightError(
                f"{path} has {size:,} bytes, at most {FILE_BYTES_MAX:,} are read: give a smaller file."
            )
        raw = path.read_bytes()
    except FileNotFoundError:
        raise PreflightError(f"The file {path} does not exist: give an existing file, DATA=FILE.") from None
    except OSError as error:
        raise PreflightError(f"The file {path} cannot be read ({error.strerror}).") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PreflightError(
            f"{path}: line {line} is not UTF-8: convert the file (iconv -t utf-8)."
        ) from None


def _is_json(path: Path, text: str) -> bool:
    suffix = path.suffix.lower()
    if suffix in _JSON_SUFFIXES or suffix in _CSV_SUFFIXES:
        return suffix in _JSON_SUFFIXES
    first = next((line for _, line in _lines(text)), "").lstrip()
    if first.startswith(("{", "[", '"')):
        return True
    if "," in first:
        return False
    raise PreflightError(
        f"{path}: the first line is neither JSON nor has a comma: give JSON lines (.jsonl) or CSV (.csv)."
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines(): JSON text may hold other line separators of Unicode as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.rstrip("\r")
