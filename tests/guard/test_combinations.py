"""The page of features and events: no pair is left out, and what it names exists."""

import re
from collections.abc import Collection, Iterator

from stele.model.keyspace import KeyspaceSpec, Mode
from tests.guard.pages import ROOT
from tests.simulation.families.registry import FAMILIES

PAGE = ROOT / "docs/internals/combinations.md"
EVENTS = {
    "move", "swap", "promotion", "restart", "rolling update", "change of state", "reads from backups",
    "near caches", "key events", "bulk loads", "transactions across partitions",
}  # fmt: skip
OWN = {
    "Quota (`quota`)": set[str](),
    "Default expiry (`ttl`)": set[str](),
    "Events of keys (`notify`)": {"key events"},
    "Near caches (`nearCache`, `CLIENT TRACKING`)": {"near caches"},
    "Reads from backups (`reads: Available`, `READONLY`)": {"reads from backups"},
    "Asynchronous replication (`replication: Async`)": set[str](),
    "Partitions of its own (`placement`)": set[str](),
    "Replicated (`mode: Replicated`)": set[str](),
    "Invalidation (`mode: Invalidation`)": set[str](),
    "Transactions across partitions": {"transactions across partitions"},
    "Keyspaces that are not declared (`keyspaces.undeclared: Refuse`)": set[str](),
    "Deletion with the entries (`onDelete: Drop`)": set[str](),
}
"""The features, each with the event that it is itself."""
NO_FEATURES = {"cluster", "name", "mode", "localCache"}
"""Fields that name a keyspace, or belong to a mode; each mode but the first is a feature."""


def _settings() -> Iterator[str]:
    """Yield what a section has to be about: each field that sets something, and each mode."""
    fields = KeyspaceSpec.model_fields
    yield from ({each.alias or name for name, each in fields.items()} - NO_FEATURES)
    yield from (f"mode: {mode.value}" for mode in Mode if mode is not fields["mode"].default)
    yield "keyspaces.undeclared"


def _unnamed(features: Collection[str]) -> list[str]:
    """Return the settings that no feature names."""
    return [each for each in _settings() if not any(f"`{each}" in feature for feature in features)]


def _tables(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each feature with its cells, by event."""
    for section in text.split("\n## ")[1:]:
        feature, _, body = section.partition("\n")
        rows = re.findall(r"^\| (.+?) \|(.*)\|$", body, re.M)[2:]
        yield feature, {event: cell.strip() for events, cell in rows for event in events.split(", ")}


def _faults(text: str) -> Iterator[str]:
    tables = dict(_tables(text))
    yield from (f"no section: {feature}" for feature in OWN.keys() ^ tables.keys())
    for feature, cells in tables.items():
        missing = (EVENTS - OWN.get(feature, set())) ^ cells.keys()
        yield from (f"{feature}: {event}" for event in sorted(missing))
        yield from (f"{feature}: {event} is empty" for event, cell in cells.items() if len(cell) < 10)
    for path, test in re.findall(r"`([\w/]+\.py)::(test_\w+)`", text):
        file = ROOT / "tests" / path
        if not file.exists() or not re.search(rf"^(?:async )?def {test}\(", file.read_text(), re.M):
            yield f"no test: {path}::{test}"
    for names in re.findall(r"simulation (`[\w ]+`(?: and `[\w ]+`)*)", text):
        yield from (f"no family: {name}" for name in re.findall("`(.+?)`", names) if name not in FAMILIES)


def test_each_pair_names_what_holds_it() -> None:
    assert list(_faults(PAGE.read_text())) == []


def test_each_setting_of_keyspaces_is_a_feature() -> None:
    assert _unnamed(OWN) == []
    assert "onDelete" in _unnamed([each for each in OWN if "onDelete" not in each])
    assert "mode: Invalidation" in _unnamed([each for each in OWN if "Invalidation" not in each])


def test_a_missing_pair_and_a_wrong_name_are_found() -> None:
    text = PAGE.read_text()
    assert list(_faults(re.sub(r"\| change of state \|.*\n", "", text, count=1)))
    assert list(_faults(text.replace("test_moves_lose_nothing", "test_moves_lose_something", 1)))
    assert list(_faults(text.replace("simulation `async`", "simulation `asink`", 1)))
    assert list(_faults(re.sub(r"(\| bulk loads \|).*(\|)", r"\1 \2", text, count=1)))
