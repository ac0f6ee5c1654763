"""Measures the source of two commits side by side: `python -m docs.tools.measure BEFORE [AFTER]`.

Prints a Markdown table. Rooms are the modules and packages directly inside a package, arrows the imports
between two of them, floors the longest chain of rooms, circles the sets that import each other.
"""

import argparse
import ast
import statistics
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

Graph = dict[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """The product's modules in one checkout, parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trees: dict[str, ast.Module] = {}
        for path in sorted((root / "operator/stele").rglob("*.py")):
            name = ".".join(path.relative_to(root / "operator").with_suffix("").parts)
            self.trees[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
        self.imports: Graph = {name: set(self._imported(name)) - {name} for name in self.trees}
        every = [node for tree in self.trees.values() for node in ast.walk(tree)]
        self.functions = [node for node in every if isinstance(node, Function)]
        self.classes = [node for node in every if isinstance(node, ast.ClassDef)]

    def _imported(self, name: str) -> Iterator[str]:
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stele"):
                for alias in node.names:
                    child = f"{node.module}.{alias.name}"
                    yield child if child in self.trees else str(node.module)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.trees)

    def lines(self, folder: str) -> int:
        files = (self.root / folder).rglob("*.py")
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)

    def rooms(self, package: str) -> Graph:
        """What each room of `package` imports of its neighbours."""
        graph: Graph = {}
        depth = package.count(".") + 1
        for name in self.trees:
            if name.startswith(f"{package}."):
                room = name.split(".")[depth]
                inside = {other for other in self.imports[name] if other.startswith(f"{package}.")}
                graph.setdefault(room, set()).update({other.split(".")[depth] for other in inside} - {room})
        return graph


def circles(graph: Graph) -> list[set[str]]:
    """Sets of more than one node, each of which reaches every other of its set."""
    reach = {node: _reached(graph, node) for node in graph}
    sets = {frozenset({b for b in reach[a] if a in reach.get(b, ())}) for a in graph if a in reach[a]}
    return [set(each) for each in sets if len(each) > 1]


def _reached(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    todo = set(graph[start])
    while todo:
        node = todo.pop()
        reached.add(node)
        todo |= graph.get(node, set()) - reached
    return reached


def floors(graph: Graph) -> int:
    """Length of the longest chain of imports; a circle counts as one floor."""
    merged = {node: min(circle) for circle in circles(graph) for node in circle}
    flat: Graph = defaultdict(set)
    for node, others in graph.items():
        flat[merged.get(node, node)] |= {merged.get(other, other) for other in others}
    heights: dict[str, int] = {}

    def height(node: str) -> int:
        if node not in heights:
            heights[node] = 1 + max((height(other) for other in flat[node] if other != node), default=0)
        return heights[node]

    return max(map(height, list(flat)))


def length(function: Function) -> int:
    """Lines of a function without its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, Function) for each in node.body)


def fields(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.AnnAssign) for each in node.body)


def most(counts: dict[str, int]) -> str:
    """The three largest, with their numbers."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]
    return ", ".join(f"{name} {number}" for name, number in ordered)


def short(name: str) -> str:
    return name.removeprefix("stele.").replace(".", "/")


def rooms(package: str) -> Callable[[Source], str]:
    def text(source: Source) -> str:
        graph = source.rooms(package)
        if not graph:
            return "-"
        arrows = sum(map(len, graph.values()))
        return f"{len(graph)} / {floors(graph)} / {arrows} / {len(circles(graph))}"

    return text


def function_lengths(source: Source) -> str:
    lengths = sorted(map(length, source.functions))
    percentiles = [lengths[len(lengths) * part // 100] for part in (90, 95, 99)]
    return ", ".join(map(str, [round(statistics.median(lengths)), *percentiles, lengths[-1]]))


def long_functions(source: Source) -> str:
    lengths = [length(each) for each in source.functions]
    return " / ".join(str(sum(each > limit for each in lengths)) for limit in (20, 30, 40))


def file_lengths(source: Source) -> str:
    ends = [tree.body[-1].end_lineno or 0 for tree in source.trees.values() if tree.body]
    return f"{sum(end > 500 for end in ends)} / {sum(end < 60 for end in ends)}"


def fan_out(source: Source) -> str:
    return most({short(name): len(others) for name, others in source.imports.items()})


def fan_in(source: Source) -> str:
    return most(Counter(short(other) for others in source.imports.values() for other in others))


def repeated(names: list[str]) -> str:
    return str(sum(number > 1 for number in Counter(names).values()))


MEASURES: dict[str, Callable[[Source], str]] = {
    "lines of the product": lambda source: f"{source.lines('operator'):,}",
    "lines of tests": lambda source: f"{source.lines('tests'):,}",
    "lines of e2e": lambda source: f"{source.lines('e2e'):,}",
    "functions; median, p90, p95, p99, longest": lambda source: (
        f"{len(source.functions):,}; {function_lengths(source)}"
    ),
    "functions over 20 / 30 / 40 lines": long_functions,
    "files over 500 / under 60 lines": file_lengths,
    "classes": lambda source: str(len(source.classes)),
    "most methods": lambda source: most({each.name: methods(each) for each in source.classes}),
    "most fields": lambda source: most({each.name: fields(each) for each in source.classes}),
    "fan-out (modules)": fan_out,
    "fan-in (modules)": fan_in,
    "circles of modules": lambda source: str(len(circles(source.imports))),
    "core: rooms / floors / arrows / circles": rooms("stele.core"),
    "core/control: rooms / floors / arrows / circles": rooms("stele.core.control"),
    "member: rooms / floors / arrows / circles": rooms("stele.member"),
    "classes that share their name": lambda source: repeated([each.name for each in source.classes]),
    "modules that share their name": lambda source: repeated(
        [name.rsplit(".", 1)[-1] for name in source.trees if not name.endswith("__main__")]
    ),
}


def checkout(revision: str, folder: Path) -> Source:
    """The source of a revision; raises CalledProcessError when git does not know it."""
    packed = subprocess.run(["git", "archive", revision], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    return Source(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", default="HEAD", help="a commit (default: HEAD)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        before, after = checkout(arguments.before, Path(first)), checkout(arguments.after, Path(second))
        print(f"| | {arguments.before} | {arguments.after} |\n| --- | --- | --- |")
        for title, measure in MEASURES.items():
            print(f"| {title} | {measure(before)} | {measure(after)} |")


if __name__ == "__main__":
    main()
