"""The figures that the design page publishes are counted as it says."""

from pathlib import Path

from docs.tools.measure import Source, circles, floors

FILES = {
    "core/__init__.py": "",
    "core/low.py": "def one() -> int:\n    return 1\n",
    "core/middle/__init__.py": "",
    "core/middle/a.py": "from stele.core import low\nfrom stele.core.middle import b\n",
    "core/middle/b.py": "import stele.core.middle.a\n",
    "core/high.py": "from stele.core.middle.b import anything\n",
}


def test_rooms_floors_and_circles_are_counted(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "operator/stele" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = Source(tmp_path)
    rooms = source.rooms("stele.core")
    assert rooms == {"low": set(), "middle": {"low"}, "high": {"middle"}}
    assert (floors(rooms), circles(rooms)) == (3, [])
    assert circles(source.imports) == [{"stele.core.middle.a", "stele.core.middle.b"}]
    assert floors(source.imports) == 3
    assert source.lines("operator") == 6
