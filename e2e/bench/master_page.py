"""The figures of the master as docs/internals/benchmarks.md has them: `--report FOLDER` writes master.md.

What is between the marks of the page is this text, pasted: a test compares settings, cases and columns.
"""

from __future__ import annotations

from pathlib import Path

from e2e.bench.report import Report, fact, markdown

SHOWN = ("cores", "memory_bytes", "python", "load_before", "load_after")
BEGIN, END = "<!-- make bench-master: begin -->", "<!-- make bench-master: end -->"


def write(report: Report, folder: Path) -> None:
    """Write the text."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("master.md").write_text("\n".join([BEGIN, *lines(report), END, ""]), encoding="utf-8")


def lines(report: Report) -> list[str]:
    """Return commit, machine, settings, tables and goals, in Markdown."""
    kind = "" if report.complete and not report.quick else ", not all of it"
    facts = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {fact(name, report.facts[name])}"
        for name in SHOWN
        if name in report.facts
    )
    found = [
        f"Commit {report.facts['commit']}; the run took {report.seconds:.0f} s{kind}.",
        f"Machine: {facts}.",
        "",
        *settings_table(report),
    ]
    for section in report.sections:
        found += ["", *markdown(section)]
    found += ["", "| goal | found | met |", "| --- | --- | --- |"]
    return found + [
        f"| {each.text} | {each.found} | {'yes' if each.met else '**no**'} |" for each in report.goals
    ]


def settings_table(report: Report) -> list[str]:
    """The settings of what is measured, as the page has them; their names have a dot."""
    settings = [f"| `{name}` | {value} |" for name, value in report.facts.items() if "." in name]
    return ["| setting | value |", "| --- | --- |", *settings]
