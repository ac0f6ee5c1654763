"""The file of `plan --offline`: reads and validates it, and converts it for the planner.

Every fault names the path of the value, the value and what was expected; all faults of one pass are reported
together.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stele.core.placement.members import WEIGHT_MAX
from stele.core.placement.plan import DataMember, Move
from stele.core.table.ids import MAX_REPLICAS, MEMBERS_MAX, PARTITIONS_MAX
from stele.core.table.table import Member, Partition, PartitionTable, trimmed
from stele.errors import BadInput
from stele.explain.situation import Situation

INPUT_BYTES_MAX = 32 * 1024 * 1024
"""Largest file; the largest table with names of 60 characters fits."""
NAME_LETTERS_MAX = 253
"""Longest name of a member or a zone, as in Kubernetes."""
MOVES_MAX = PARTITIONS_MAX
"""Most moves in one file."""
FAULTS_SHOWN_MAX = 20
"""Faults that one message lists; further ones are counted."""
DIGITS_MAX = 4_000
"""Digits of a number that is parsed; a longer one is out of range everywhere."""
SHOWN_LETTERS_MAX = 60

Location = tuple[str | int, ...]
Fault = str


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class MemberEntry(_Strict):
    """A member. Leaving members are emptied, lite ones hold no data, away ones are expected back."""

    name: str
    weight: Annotated[int, Field(ge=1, le=WEIGHT_MAX)] = 1
    zone: str | None = None
    lite: bool = False
    leaving: bool = False
    away: bool = False


class MoveEntry(_Strict):
    """A requested move of the replica of `partition` from `source` to `destination`."""

    partition: Annotated[int, Field(ge=0, le=PARTITIONS_MAX - 1)]
    source: str
    destination: str


class PlanFile(_Strict):
    """The whole file; names are case-sensitive."""

    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_MAX)]
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    members: Annotated[list[MemberEntry], Field(min_length=1, max_length=MEMBERS_MAX)]
    current: Annotated[
        list[Annotated[list[str | None], Field(max_length=MAX_REPLICAS)]], Field(max_length=PARTITIONS_MAX)
    ]
    moves: Annotated[list[MoveEntry], Field(max_length=MOVES_MAX)] = []


_NAME = f"a string of 1 to {NAME_LETTERS_MAX} printable characters"
_EXPECTED = {
    "$": 'an object with the keys "partitions", "replicas", "members", "current" and, optionally, "moves"',
    "$.partitions": f"a whole number from 1 to {PARTITIONS_MAX}",
    "$.replicas": f"a whole number from 1 to {MAX_REPLICAS}, the owner included",
    "$.members": f"a list of 1 to {MEMBERS_MAX} members",
    "$.members[]": 'an object such as {"name": "a", "weight": 1, "zone": "z1"}',
    "$.members[].name": _NAME,
    "$.members[].weight": f"a whole number from 1 to {WEIGHT_MAX}; leave it out for 1",
    "$.members[].zone": f"{_NAME}; leave it out for a member without zone",
    "$.members[].lite": "true or false; leave it out for false",
    "$.members[].leaving": "true or false; leave it out for false",
    "$.members[].away": "true or false; leave it out for false",
    "$.current": f"a list with one row for each partition, at most {PARTITIONS_MAX}",
    "$.current[]": f'a row of at most {MAX_REPLICAS} names by replica index, the owner first: ["a", null]',
    "$.current[][]": f"null for an empty index, or the name of a member: {_NAME}",
    "$.moves": f"a list of at most {MOVES_MAX} moves; leave it out for none",
    "$.moves[]": 'an object such as {"partition": 0, "source": "a", "destination": "b"}',
    "$.moves[].partition": "a whole number, the index of the partition in $.current",
    "$.moves[].source": "the name of the member that holds the replica today",
    "$.moves[].destination": "the name of the member that should hold it",
}
_KEYS = {
    "$": tuple(PlanFile.model_fields),
    "$.members[]": tuple(MemberEntry.model_fields),
    "$.moves[]": tuple(MoveEntry.model_fields),
}


def load(file: str) -> Situation:
    """Read a file, or standard input for `-`. Raises BadInput with all faults."""
    where = "standard input" if file == "-" else file
    return situation(_parsed(_text(_bytes(file, where), where), where), where)


def situation(value: object, where: str) -> Situation:
    """Validate a parsed file. Raises BadInput with all faults."""
    try:
        spec = PlanFile.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise _refused(where, map(_fault, errors), len(errors)) from None
    faults = [*_member_faults(spec), *_row_faults(spec), *_move_faults(spec)]
    if faults:
        raise _refused(where, faults, len(faults))
    return _situation(spec)


def _situation(spec: PlanFile) -> Situation:
    index = {member.name: number for number, member in enumerate(spec.members)}
    for row in spec.current:
        for name in row:
            if name is not None:
                index.setdefault(name, len(index))
    rows = (trimmed(None if name is None else index[name] for name in row) for row in spec.current)
    # A row without names was never assigned; one with only unknown names has lost its copies.
    partitions = tuple(Partition(1 if row else 0, row) for row in rows)
    members = tuple(
        DataMember(number, member.weight, member.zone, member.leaving, member.away)
        for number, member in enumerate(spec.members)
        if not member.lite
    )
    moves = tuple(Move(m.partition, index[m.source], index[m.destination]) for m in spec.moves)
    lite = frozenset(number for number, member in enumerate(spec.members) if member.lite)
    names = {number: name for name, number in index.items()}
    dictionary = {number: Member(number, name, name, "", number in lite) for number, name in names.items()}
    return Situation(names, PartitionTable(partitions, dictionary), members, lite, spec.replicas, moves)


def _bytes(file: str, where: str) -> bytes:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(INPUT_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"{where} cannot be read: {reason}; name a file, or - for standard input") from None
    if len(data) > INPUT_BYTES_MAX:
        raise BadInput(f"{where} has more than {INPUT_BYTES_MAX} bytes, the limit", "TOO_LARGE")
    return data


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        text = f"byte {error.start} (line {line}) is not UTF-8; save the file as UTF-8"
        raise BadInput(f"{where}: {text}") from None


def _parsed(text: str, where: str) -> object:
    twice: dict[int, tuple[dict[str, Any], list[str]]] = {}

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        parsed = dict(items)
        if len(parsed) < len(items):
            keys = Counter(key for key, _ in items)
            twice[id(parsed)] = (parsed, [key for key, count in keys.items() if count > 1])
        return parsed

    try:
        value: object = json.loads(text, object_pairs_hook=pairs, parse_int=_whole)
    except json.JSONDecodeError as error:
        fault = "no content" if not text.strip() else "invalid JSON"
        text = f"{fault} at line {error.lineno}, column {error.colno}: {error.msg}"
        raise BadInput(f"{where}: {text}") from None
    except RecursionError:
        raise BadInput(f"{where} is nested too deeply; lists of lists suffice") from None
    if twice:
        faults = list(_twice_faults(value, {at: keys for at, (_, keys) in twice.items()}))
        raise _refused(where, faults, len(faults))
    return value


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= DIGITS_MAX else math.inf


def _twice_faults(value: object, twice: Mapping[int, Sequence[str]]) -> Iterator[Fault]:
    """Iterate faults for repeated keys. Outer objects come first, so at least one is still in the value."""
    for location, node in _walk(value):
        for key in twice.get(id(node), ()):
            yield f"{_path((*location, key))} is repeated; give each key once"


def _walk(value: object) -> Iterator[tuple[Location, object]]:
    pending: list[tuple[Location, object]] = [((), value)]
    while pending:
        location, node = pending.pop()
        yield location, node
        if isinstance(node, dict):
            pending.extend(((*location, key), each) for key, each in node.items())
        elif isinstance(node, list):
            pending.extend(((*location, index), each) for index, each in enumerate(node))


def _refused(where: str, faults: Iterable[Fault], count: int) -> BadInput:
    listed = [f"  {fault}" for fault in islice(faults, FAULTS_SHOWN_MAX)]
    if count > FAULTS_SHOWN_MAX:
        listed.append(f"  and {count - FAULTS_SHOWN_MAX} more")
    return BadInput("\n".join([f"{where} has {count} fault{'s' * (count > 1)}", *listed]))


def _fault(error: Mapping[str, Any]) -> Fault:
    """Translate pydantic's error; what is expected is more helpful than how the value differs."""
    location: Location = error["loc"]
    path = _path(location)
    if error["type"] == "string_unicode":
        return f"{path} has a key that is not valid text (half of a surrogate pair); correct the key"
    if error["type"] == "extra_forbidden":
        return f"{path} is unknown; {_known(location)}"
    expected = _EXPECTED[_pattern(location)]
    if error["type"] == "missing":
        return f"{path} is missing; expected {expected}"
    return f"{path} is {shown(error['input'])}; expected {expected}"


def _known(location: Location) -> str:
    keys = _KEYS[_pattern(location[:-1])]
    near = get_close_matches(str(location[-1]), keys, 1)
    return f'did you mean "{near[0]}"?' if near else f"known keys are {', '.join(keys)}"


def _path(location: Location) -> str:
    return "$" + "".join(map(_part, location))


def _part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isascii() and part.isidentifier() else f"[{shown(part)}]"


def _pattern(location: Location) -> str:
    return "$" + "".join("[]" if isinstance(part, int) else f".{part}" for part in location)


def shown(value: object) -> str:
    """Render a value for a message, on one short line."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_LETTERS_MAX else f"{text[:SHOWN_LETTERS_MAX]}..."


def _is_name(name: str) -> bool:
    return 1 <= len(name) <= NAME_LETTERS_MAX and name.isprintable()


def _member_faults(spec: PlanFile) -> Iterator[Fault]:
    places: dict[str, int] = {}
    for number, member in enumerate(spec.members):
        if not _is_name(member.name):
            yield _not_expected(("members", number, "name"), member.name)
        elif member.name in places:
            first = f"$.members[{places[member.name]}] has the same name"
            yield f"$.members[{number}].name is {shown(member.name)}; {first}: give each member a unique name"
        places.setdefault(member.name, number)
        if member.away and (member.leaving or member.lite):
            other = "leaving" if member.leaving else "lite"
            text = f"a member that is {other} is not waited for: set one of them to false"
            yield f"$.members[{number}].away is true; {text}"
        if member.zone is not None and not _is_name(member.zone):
            yield _not_expected(("members", number, "zone"), member.zone)


def _row_faults(spec: PlanFile) -> Iterator[Fault]:
    if len(spec.current) != spec.partitions:
        rows = f"$.current is a list of {len(spec.current)}; $.partitions is {spec.partitions}"
        yield f"{rows}: give one row for each partition"
    lite = {member.name for member in spec.members if member.lite}
    valid = {None} | {member.name for member in spec.members} - lite
    for number, row in enumerate(spec.current):
        holders = [name for name in row if name is not None]
        if not valid.issuperset(row) or len(set(holders)) < len(holders):
            yield from _slot_faults(number, row, lite)


def _slot_faults(number: int, row: Sequence[str | None], lite: Iterable[str]) -> Iterator[Fault]:
    for index, name in enumerate(row):
        if name is None:
            continue
        value_text = f"$.current[{number}][{index}] is {shown(name)}"
        if not _is_name(name):
            yield _not_expected(("current", number, index), name)
        elif name in lite:
            yield f"{value_text}; lite members hold no replicas: set leaving, or remove it from the row"
        elif row.index(name) < index:
            yield f"{value_text}; index {row.index(name)} of the row too: a member holds at most one copy"


def _move_faults(spec: PlanFile) -> Iterator[Fault]:
    names = {member.name for member in spec.members}
    away = {member.name for member in spec.members if member.away}
    for number, move in enumerate(spec.moves):
        if move.partition >= spec.partitions:
            text = f"the partitions are 0 to {spec.partitions - 1}"
            yield f"$.moves[{number}].partition is {move.partition}; {text}"
        for key, name in (("source", move.source), ("destination", move.destination)):
            if name in away:
                text = "which is away: nothing can be moved until it is back"
                yield f"$.moves[{number}].{key} is {shown(name)}, {text}"
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                yield f"$.moves[{number}].{key} is {shown(name)}; no entry of $.members has this name{hint}"


def _not_expected(location: Location, value: object) -> Fault:
    return f"{_path(location)} is {shown(value)}; expected {_EXPECTED[_pattern(location)]}"
