"""What is left out of a support bundle: environments, commands, passwords, keys and tokens."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from stele.adapters.json_lines import decode
from stele.core.kv.acl import without_password

LEFT_OUT = "(left out)"

_OWN = "stele.dev/"
_COPIED = f"{_OWN}cluster-spec"
"""Annotation with the text of a whole spec."""

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|secret$|token$|credential|private.?key|api.?key|access.?key", re.I
)
"""Fields whose text may be a secret; `secretName` and the like have names."""

_WORDS = (
    r"(?:requirepass|masterauth|redis(?:cli)?_?auth|pass(?:word|wd|phrase)?|secret|token|api[-_]?key|"
    r"credentials?)"
)
_MARK = r"(?:[<>#!]|\\{1,4}u003[ce])"
"""What a rule of a user begins with whose rest is a password, or the hash of one."""
_TEXTS = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.S),
    re.compile(r"\beyJ[\w-]{8,2000}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"(?<=://)[^\s/@:]{0,200}:[^\s/@]{1,200}(?=@)"),
    re.compile(r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{6,}"),
)
_VALUES = (
    re.compile(rf"(?i)(\b[\w.-]{{0,40}}{_WORDS}[\"']?\s*[:=]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&]+)"),
    re.compile(
        r"((?:^|[\s\"'\[])(?:AUTH|auth)[\"', \t]+)([^\s\"',\]]+(?:[\"', \t]+[^\s\"',\]]+)?)",
        re.M,
    ),
    re.compile(r"(?i)(--(?:pass(?:word)?|auth|token|secret)[\"',\s=]+|\s-a\s+)([^\s\"',\]]+)"),
    # Rules of users with a password or its hash: in errors, in quotes, in quotes of quoted texts, and bare.
    re.compile(rf"(\bACL rule '{_MARK})[^\n]+?(?=': |$)", re.I | re.M),
    re.compile(rf"((?<!\\)([\"']){_MARK})(?:\\.|(?!\2)[^\\\n])++(?=\2)"),
    re.compile(rf"(\\([\"']){_MARK})[^\n]+?(?=\\\2)"),
    re.compile(rf"((?:^|[\s\[(,:=]){_MARK})(?!\(left out)\S{{5,}}", re.M),
)
"""Values after a word, the part before them being kept. AUTH may have a user before the password."""

_KEY_BEGIN = "-----BEGIN "
_KEY_END = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY-----")
HALF_KEY_CHARACTERS_MAX = 32 * 1024
"""A key that ends later in a log has begun in it; keys are shorter, also with the time before each line."""

_RULES = frozenset({"acl", "rules"})
"""Fields with rules of users, in which a password has any length."""


def without_secrets(stored: Any) -> Any:
    """Return an object of Kubernetes without what may be secret in its fields."""
    if isinstance(stored, list):
        return [without_secrets(each) for each in stored]
    if isinstance(stored, str):
        return text_without_secrets(stored)
    if not isinstance(stored, Mapping):
        return stored
    return {key: _field(key, value) for key, value in stored.items()}


def _field(key: str, value: Any) -> Any:
    if key in ("env", "httpHeaders") and isinstance(value, list):
        return [{**each, "value": LEFT_OUT} if "value" in each else each for each in value]
    if key in ("command", "args") and isinstance(value, list):
        return [LEFT_OUT]
    if key == "annotations" and isinstance(value, Mapping):
        return {name: _annotation(name, text) for name, text in value.items()}
    if key == "managedFields":
        return []
    if key in _RULES:
        return [_rule(each) for each in value] if isinstance(value, list) else _rule(value)
    if isinstance(value, str) and _SECRET_NAME.search(key):
        return LEFT_OUT
    return without_secrets(value)


def _rule(value: Any) -> Any:
    kept = without_password(value, LEFT_OUT) if isinstance(value, str) else value
    return kept if kept != value else without_secrets(value)


def _annotation(name: str, text: str) -> str:
    return text_without_secrets(text) if name.startswith(_OWN) and name != _COPIED else LEFT_OUT


def text_without_secrets(text: str) -> str:
    """Return text without what looks like a password, a key or a token."""
    for pattern in _TEXTS:
        text = pattern.sub(LEFT_OUT, text)
    for pattern in _VALUES:
        text = pattern.sub(lambda found: f"{found[1]}{LEFT_OUT}", text)
    return text


def log_without_secrets(text: str) -> str:
    """Return the end of a log, each line after its time, in the same way; of lines of JSON, their fields."""
    return "".join(_pieces(_without_half_key(text)))


def _without_half_key(text: str) -> str:
    """Return a log without the rest of a private key whose beginning came before it."""
    found = _KEY_END.search(text)
    if found is None or found.start() > HALF_KEY_CHARACTERS_MAX or _KEY_BEGIN in text[: found.start()]:
        return text
    return f"{LEFT_OUT}\n{text[found.end() :].lstrip()}"


def _pieces(text: str) -> Iterator[str]:
    for is_json, lines in groupby(text.splitlines(keepends=True), lambda line: _fields(line) is not None):
        if is_json:
            yield from map(_json_line, lines)
        else:
            # Together: a private key has several lines.
            yield text_without_secrets("".join(lines))


def _fields(line: str) -> dict[str, Any] | None:
    return decode(line.partition(" ")[2])


def _json_line(line: str) -> str:
    fields = _fields(line)
    kept = without_secrets(fields)
    return line if kept == fields else f"{line.partition(' ')[0]} {json.dumps(kept)}\n"
