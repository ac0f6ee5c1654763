"""Lines of a log as JSON: one object each, so that programs find what a line is about.

What the template of a line names is a field of its own: `log.info("partition %d: fenced", 17)` has the field
`partition`. So who logs says it once, and the texts of others never become fields.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

LINE_BYTES_MAX = 16 * 1024
"""Bytes of a line with its end: container runtimes break longer ones apart."""
NAME_CHARACTERS_MAX = 100
"""Characters of a field that a template names."""
NAMED = ("member", "partition", "migration", "session", "epoch")
"""Words whose value is a field, where they stand before their placeholder."""

OF_THE_LINE = ("partition", "migration", "session")
"""Of these, what a line itself names is meant: it may be about others than the work that logs it."""

_PLACEHOLDER = re.compile(r"(?:(\b[a-z]+) )?%(%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")
_OURS = "stele"

Fields = Mapping[str, Any]


class JsonFormatter(logging.Formatter):
    """Writes `timestamp` (RFC 3339, UTC), `level`, `logger` and `message`, what the line is about, and
    `exception`; a line is at most LINE_BYTES_MAX long. `about` returns what else it is about now.
    """

    def __init__(self, about: Callable[[], Fields]) -> None:
        super().__init__()
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        named, about = named_in(record), {name: _field(value) for name, value in self._about().items()}
        line: dict[str, Any] = {
            "timestamp": _time_text(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": "",
            **named,
            **about,
            **{name: named[name] for name in OF_THE_LINE if name in named},
        }
        texts = {"message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            texts["exception"] = self.formatException(record.exc_info)
        return _fitting(line, {name: _writable(text) for name, text in texts.items()})


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def named_in(record: logging.LogRecord) -> dict[str, int | str]:
    """Return the fields that the template names; of two with the same name, the first."""
    args = record.args
    if not isinstance(args, tuple) or not args or record.name.partition(".")[0] != _OURS:
        return {}
    found: dict[str, int | str] = {}
    for name, position in _names(str(record.msg)):
        value = args[position] if position < len(args) else None
        if isinstance(value, str | int):
            found.setdefault(name, _field(value))
    return found


def _field(value: str | int) -> str | int:
    """Return what a field may be: text only so long that a line stays short."""
    return _writable(value[:NAME_CHARACTERS_MAX]) if isinstance(value, str) else value


@lru_cache(maxsize=1024)
def _names(template: str) -> tuple[tuple[str, int], ...]:
    """Return the names with the positions of their values."""
    words = [word for word, kind in _PLACEHOLDER.findall(template) if kind != "%"]
    return tuple((word, position) for position, word in enumerate(words) if word in NAMED)


def _writable(text: str) -> str:
    """Return text that UTF-8 can hold: readers of JSON refuse halves of surrogate pairs."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _fitting(line: dict[str, Any], texts: dict[str, str]) -> str:
    """Return the line with the texts, the longest one cut in half until it is short enough."""
    kept = {name: min(len(text), LINE_BYTES_MAX) for name, text in texts.items()}
    while True:
        cut = {name: _cut(name, text, kept[name]) for name, text in texts.items()}
        written = json.dumps(line | cut, separators=(",", ":"))
        if len(written) < LINE_BYTES_MAX or not any(kept.values()):
            return written
        kept[max(kept, key=kept.__getitem__)] //= 2


def _cut(name: str, text: str, characters: int) -> str:
    """Return the beginning of a message; of an exception the end, where the error is."""
    if (missing := len(text) - characters) <= 0:
        return text
    note = f"({missing} characters are left out)"
    return f"{note}\n{text[missing:]}" if name == "exception" else f"{text[:characters]} {note}"


def decode(line: str) -> dict[str, Any] | None:
    """Return the fields of a line as `JsonFormatter` writes it; None for any other."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("message"), str) else None


_FIRST = ("timestamp", "level", "logger", "message")
_OF_THE_PLACE = ("namespace", "cluster", "exception")


def text_of(fields: Fields) -> Iterator[str]:
    """Iterate the lines of text that show the fields to people; those of an exception are indented.

    What the message says already, and the cluster, are not repeated.
    """
    timestamp, level, logger, message = (_one_line(fields.get(name, "")) for name in _FIRST)
    rest = [
        f"{name}={_one_line(value)}"
        for name, value in fields.items()
        if name not in (*_FIRST, *_OF_THE_PLACE) and f"{name} {value}" not in message
    ]
    yield " ".join([timestamp, level, f"{logger}:", message, *rest])
    for line in str(fields.get("exception", "")).splitlines():
        yield f"    {line}"


def _one_line(value: object) -> str:
    return str(value).replace("\n", "\\n").replace("\r", "\\r")
