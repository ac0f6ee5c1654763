"""Pages that people read: links lead somewhere, lines stay short, the reference lists all there is."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

import stele
import stele.copyjob.settings
import stele.master.settings
import stele.member.settings
import stele.transfer.__main__
from stele.adapters.logs import LogSettings

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+)[^)\s]*\)")
_CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
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


def _unlisted(nav: Any, text: str) -> list[str]:
    """Pages of the site's navigation that the start page has no link to."""
    if isinstance(nav, str):
        return [] if nav == "index.md" or f"]({nav})" in text else [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in _unlisted(part, text)]


def test_the_start_page_leads_to_every_page() -> None:
    nav = re.search(r"^nav:.*", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE | re.DOTALL)
    assert nav is not None
    assert _unlisted(yaml.safe_load(nav.group())["nav"], (ROOT / "docs/index.md").read_text()) == []


def test_a_page_without_a_link_is_found() -> None:
    nav = [{"Home": "index.md"}, {"Design": ["a.md", {"More": ["b/c.md", "b/d.md"]}]}]
    assert _unlisted(nav, "[a](a.md) [c](b/c.md) b/d.md") == ["b/d.md"]


def test_the_newest_release_is_the_version_of_package_and_chart() -> None:
    released = re.findall(
        r"^## (\S+) \(2\d{3}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    chart = yaml.safe_load((ROOT / "charts/stele/Chart.yaml").read_text())
    assert released[0] == stele.__version__ == chart["version"] == chart["appVersion"]


def test_changelog_fragments_have_the_form_that_towncrier_reads() -> None:
    for path in (ROOT / "changelog.d").glob("*"):
        if path.name != "template.md.jinja":
            assert _FRAGMENT.fullmatch(path.name), (
                f"{path.name}: call it NNNN.feature.md (fix, change, removal)"
            )
            assert not path.read_text().startswith(("-", "#")), f"{path.name}: text alone, without a bullet"


def test_code_names_pages_that_exist() -> None:
    """Messages and comments that say `docs/...`; a section in quotes after it is one of that page."""
    listed = subprocess.run(
        ["git", "grep", "-hoE", r"docs/[a-z0-9/-]+\.md(, \"[^\"]+\")?", "--", "*.py", "*.yaml", "*.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name, _, section in (line.partition(", ") for line in listed):
        assert (ROOT / name).exists(), name
        assert section.strip('"') in (ROOT / name).read_text(), f"{name} has no {section}"


def _long(page: str, text: str) -> Iterator[str]:
    """Lines of prose above 110 columns; tables, code and lines that are one link or one word cannot break."""
    blank = _CODE.sub(lambda code: "\n" * code.group().count("\n"), text)
    for number, line in enumerate(blank.splitlines(), 1):
        if len(line) > 110 and not line.startswith(("|", "    ")) and line.strip().count(" ") > 3:
            yield f"{page}:{number}: {len(line)} columns"


def test_lines_of_prose_are_below_110_columns() -> None:
    assert [line for page, text in _pages().items() for line in _long(page, text)] == []


def test_a_long_line_is_found() -> None:
    text = "a b c " * 30
    assert list(_long("x.md", f"```\n{text}\n```\n| {text}\n{text}\n")) == ["x.md:5: 180 columns"]


def _missing(page: str, names: Iterable[str]) -> list[str]:
    text = (ROOT / "docs" / "reference" / page).read_text()
    return sorted(name for name in set(names) if f"`{name}`" not in text)


def test_every_setting_is_in_the_reference() -> None:
    kinds = (stele.copyjob.settings, stele.master.settings, stele.member.settings, stele.transfer.__main__)
    settings = (*(kind.Settings for kind in kinds), LogSettings)
    declared = [field for each in settings for field in fields(each) if field.metadata]
    assert len(declared) > 40
    assert _missing("settings.md", (field.metadata["variable"] for field in declared)) == []


def test_every_value_of_the_chart_is_in_the_reference() -> None:
    values = yaml.safe_load((ROOT / "charts/stele/values.yaml").read_text())
    leaves = [
        f"{name}.{key}" if key else name
        for name, value in values.items()
        for key in (value if isinstance(value, dict) else [""])
    ]
    assert _missing("settings.md", leaves) == []


def _metrics() -> set[str]:
    """Names in the code, as Prometheus shows them: a counter gets `_total`."""
    sources = [*ROOT.glob("operator/stele/master/*.py"), *ROOT.glob("operator/stele/member/admin/*.py")]
    calls = r'(Counter\w*|\w*Family|_gauge|_histogram|Histogram)\(\s*"(stele_\w+)"'
    found = re.findall(calls, "".join(p.read_text() for p in sources))
    return {name + "_total" * kind.startswith("Counter") for kind, name in found}


def test_the_reference_has_every_metric_and_no_other() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert set(re.findall(r"`(stele_\w+)`", text)) == _metrics()
    assert len(_metrics()) > 30


def test_alerts_and_pages_name_metrics_that_exist() -> None:
    named = {
        f"{page}: {name}"
        for page, text in _pages().items()
        if page.startswith("docs/operating")
        for name in re.findall(r"\bstele_[a-z_]+", text)
        if name not in _metrics()
    }
    assert named == set()


def test_decision_records_have_status_and_date_and_are_listed() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text()
    for path in sorted((ROOT / "docs/decisions").glob("0*.md")):
        title, _, status = path.read_text().split("\n")[:3]
        assert title.startswith(f"# {path.name[:4]}: "), path.name
        assert re.fullmatch(r"Status: (accepted|superseded by .*|rejected), 2\d{3}-\d\d-\d\d", status), (
            path.name
        )
        assert f"({path.name})" in listed, f"docs/decisions/README.md has no line for {path.name}"
