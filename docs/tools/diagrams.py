"""Draws each state machine of the core into docs/internals/state-machines.md (python -m docs.tools.diagrams).

A machine is a table with the name TRANSITIONS, or one that ends so: of state to the states that may follow,
or of (state, event) to the state that follows. None is the state before the first. A `MEANING` in the same
module says when events come.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType

import stele.core

PAGE = Path(__file__).parents[1] / "internals" / "state-machines.md"
HEAD = """# State machines

Drawn from the tables in the code by `python -m docs.tools.diagrams`; a step that is not in its table
raises.
"""

Table = Mapping[object, object]


def tables() -> Iterator[tuple[ModuleType, Table]]:
    """Every table of transitions in the core, with its module, by the modules' names."""
    for found in pkgutil.walk_packages(stele.core.__path__, "stele.core."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if name.endswith("TRANSITIONS"):
                yield module, value


def drawn(table: Table) -> str:
    """The table as a Mermaid diagram."""
    arrows = []
    for key, value in table.items():
        if isinstance(key, tuple):
            arrows.append(f"{_name(key[0])} --> {_name(value)}: {_name(key[1])}")
        else:
            assert isinstance(value, frozenset)
            arrows += [f"{_name(key)} --> {_name(after)}" for after in value or (None,)]
    # The order of a set's members is another one in each process.
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {each}" for each in sorted(arrows)), "```"])


def _name(state: object) -> str:
    """Of a state or an event; None is Mermaid's mark for where a machine begins and ends."""
    if state is None:
        return "[*]"
    assert isinstance(state, Enum)
    return state.name


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for module, table in tables():
        path = module.__name__.replace(".", "/").removeprefix("stele/")
        parts.append(f"## {_states(table)}: `{path}.py`\n\n{drawn(table)}\n")
        if meaning := getattr(module, "MEANING", None):
            rows = [f"| `{event.name}` | {text} |" for event, text in meaning.items()]
            parts.append("\n".join(["| event | when |", "| --- | --- |", *rows, ""]))
    return "\n".join(parts)


def _states(table: Table) -> str:
    """The name of the enumeration whose members are the states."""
    key, value = next(iter(table.items()))
    return type(value if isinstance(key, tuple) else key).__name__


if __name__ == "__main__":
    PAGE.write_text(page())
