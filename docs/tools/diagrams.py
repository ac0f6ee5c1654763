"""Draws the states of a tablet into a document: `python -m docs.tools.diagrams docs/internals/member.md`."""

import sys
from pathlib import Path

from stele.core.tablet.lifecycle import MEANING, TRANSITIONS

BEGIN, END = "<!-- states: begin -->", "<!-- states: end -->"


def drawn() -> str:
    """The transition table as a Mermaid diagram, and what each event means."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> DOES_NOT_EXIST"]
    for (before, event), after in TRANSITIONS.items():
        lines.append(f"    {before.value} --> {after.value}: {event.value}")
    lines += ["```", "", "| event | when |", "| --- | --- |"]
    return "\n".join(lines + [f"| `{event.value}` | {meaning} |" for event, meaning in MEANING.items()])


def replaced(text: str) -> str:
    """The document with the present diagram; ValueError when it has no place for one."""
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:begin]}\n{drawn()}\n{text[end:]}"


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(replaced(document.read_text()))
