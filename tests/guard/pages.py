"""The repository's pages, and the blocks of code in them."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Block(NamedTuple):
    """A block of code; a language of "" was not given, or it is indented by four spaces."""

    page: str
    language: str
    text: str


@cache
def files(*patterns: str) -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {name: (ROOT / name).read_text() for name in listed if (ROOT / name).exists()}


def pages() -> dict[str, str]:
    """Pages about what is, without records of decisions and the changelog."""
    return files("*.md", ":!CHANGELOG.md", ":!changelog.d", ":!docs/decisions")


def blocks() -> Iterator[Block]:
    for page, text in pages().items():
        for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$|(?:^ {4}[^\n]*\n)+", text, re.M | re.S):
            yield Block(page, match[2] or "", match[3] or match[0])
