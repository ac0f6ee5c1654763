"""Pages that people read: links lead somewhere, lines stay short, fragments and records have their form."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+)[^)\s]*\)")
_FRAGMENT = re.compile(r"\d{4}\.(feature|fix|change|removal)(\.\d+)?\.md")


def _pages() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return {name: (ROOT / name).read_text() for name in listed if (ROOT / name).exists()}


def _broken(page: str, text: str) -> Iterator[str]:
    for link in _LINK.findall(text):
        if not (ROOT / page).parent.joinpath(link).exists():
            yield f"{page}: {link}"


def test_links_lead_to_files_of_the_repository() -> None:
    assert [link for page, text in _pages().items() for link in _broken(page, text)] == []


def test_a_broken_link_is_found() -> None:
    text = "[a](nowhere.md) [b](LICENSE) [c](https://x.example) ![d](docs/no.png#x)"
    assert list(_broken("README.md", text)) == ["README.md: nowhere.md", "README.md: docs/no.png"]


def test_changelog_fragments_have_the_form_that_towncrier_reads() -> None:
    for path in (ROOT / "changelog.d").glob("*"):
        if path.name != "template.md.jinja":
            assert _FRAGMENT.fullmatch(path.name), (
                f"{path.name}: call it NNNN.feature.md (fix, change, removal)"
            )
            assert not path.read_text().startswith(("-", "#")), f"{path.name}: text alone, without a bullet"
