"""One word for one thing, and the field's own: see docs/glossary.md."""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.pages import pages

ROOT = Path(__file__).resolve().parents[2]
OLD_WORDS = {
    "door": "RESP server, or the Service of one member",
    "doors": "RESP servers, or member ports",
    "happening": "event",
    "happenings": "events",
    "heed": "apply, or check",
    "orphans": "abandoned hand-overs",
    "reassign": "reset to empty; elsewhere it means to move",
    "reassigned": "reset to empty",
    "reign": "leadership, epoch",
    "reigns": "leads",
    "relics": "stale copies",
    "speech": "requests",
    "stranger": "another UUID",
    "twin": "fake",
    "twins": "fakes",
    "votes": "leases",
    "wish": "desired spec",
    "wished": "desired",
    "wishes": "desired spec",
    "zygote": "fork server",
}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def _old(name: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(name)} & OLD_WORDS.keys()


def _found(path: str, text: str) -> Iterator[str]:
    """Old words in a file's path and in the identifiers of its text."""
    yield from (f"{path}: {word}: say {OLD_WORDS[word]}" for word in sorted(_old(path)))
    lower = text.lower()
    if not any(word in lower for word in OLD_WORDS):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            for word in sorted(_old(token.string)):
                yield f"{path}:{token.start[0]}: {token.string}: say {OLD_WORDS[word]}"


def _files(*patterns: str) -> list[str]:
    found = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in found.stdout.splitlines() if (ROOT / name).exists()]


def test_identifiers_and_paths_are_words_of_the_field() -> None:
    paths = _files("operator/*.py", "e2e/*.py", "tests/*.py")
    assert paths, "git lists no Python file: run this in a checkout"
    assert [line for path in paths for line in _found(path, (ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    "name", ["wishes", "KubernetesTwin", "_heed_damage", "IN_A_REIGN", "tests/x/door_twin.py"]
)
def test_an_old_word_is_found(name: str) -> None:
    assert _old(name)
    assert list(_found("x.py", "newname = 1\n")) == []


def test_what_users_read_has_no_old_word() -> None:
    """Resources, conditions, events, logs of the chart: what people search for."""
    pattern = re.compile(rf"\b({'|'.join(OLD_WORDS)})\b", re.IGNORECASE)
    paths = _files("crds/*", "charts/*", "examples/*", "*.md", ":!CHANGELOG.md")
    assert paths
    found = [
        f"{path}:{number}: {match.group()}: say {OLD_WORDS[match.group().lower()]}"
        for path in paths
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert found == []


_CITATION = re.compile(
    r"\bseed 0\d\d\b|\bdesign \d\d\b|\bresearch/\w"
    r"|\bthe (design|seed) (says|said|asks|asked|has|lets|lists|wants|names|sends|plans)\b",
    re.IGNORECASE,
)


def test_nothing_cites_a_text_that_readers_do_not_have() -> None:
    """What matters of a design is in docs/design, with the published source by its name."""
    paths = _files("*.py", "*.md", "*.txt", "*.yaml", "charts/*", "images/*", ":!tests/guard/test_words.py")
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if _CITATION.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ["(seed 002)", "design 40-tablet", "research/libraries.md", "The design asks"]
)
def test_a_citation_is_found(text: str) -> None:
    assert _CITATION.search(text)


_DENIAL = re.compile(
    r"transactions inside (of )?(a|one) partition|transactions? covers? keys of one partition"
    r"|\bno\b[^.|]*\b(or )?pub/sub|\blists, hashes[^.|]*pub/sub|\btransactions over any keys \|",
    re.IGNORECASE,
)


def test_no_page_denies_what_is_built() -> None:
    """Transactions cover several partitions, and there are channels: pages that said no were right once."""
    texts = {page: re.sub(r"\]\([^)]*\)|[\s[]+", " ", text) for page, text in pages().items()}
    assert [f"{page}: {found[0]}" for page, text in texts.items() if (found := _DENIAL.search(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "counters, expiry and transactions inside a partition",
        "There are no lists, hashes, sets, scripts or pub/sub.",
        "Transactions cover keys of one partition.",
        "| lists, hashes, sets, streams, Lua, pub/sub | Redis or Valkey |",
        "| transactions over any keys | TiKV |",
    ],
)
def test_a_denial_is_found(text: str) -> None:
    assert _DENIAL.search(text)
