"""Machines of the core as text: see `tests.golden.script`."""

from pathlib import Path

import pytest

from stele.core.tablet import log
from tests.golden.control import OperationMachine, RepairMachine
from tests.golden.liveness import LivenessMachine
from tests.golden.script import FOLDER, Machine, check
from tests.golden.tablets import LeaseMachine, LogMachine, TabletMachine

MACHINES: dict[str, type[Machine]] = {
    "cluster-state": OperationMachine,
    "leases": LeaseMachine,
    "liveness": LivenessMachine,
    "log": LogMachine,
    "migration": OperationMachine,
    "promotion": OperationMachine,
    "repair": RepairMachine,
    "session": OperationMachine,
    "tablet": TabletMachine,
}
PLAIN = ("leases/holder", "tablet/swap")
"""Their texts give tuples and numbers to what takes sets and truth values."""

NAMES = [f"{room}/{path.stem}" for room in MACHINES for path in sorted((FOLDER / room).glob("*.txt"))]
CASES = [
    pytest.param(FOLDER / f"{name}.txt", id=name, marks=[pytest.mark.plain] if name in PLAIN else [])
    for name in NAMES
]


@pytest.mark.parametrize("path", CASES)
def test_script(path: Path, rewrite: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 20)
    check(path, MACHINES[path.parent.name], rewrite)


def test_a_changed_script_fails_until_it_is_rewritten(tmp_path: Path) -> None:
    changed = tmp_path / "changed.txt"
    text = (FOLDER / "tablet" / "owner.txt").read_text()
    for before, after in (
        ("probe 0.1", "probe 0.3"),
        ("\n  owner SERVING", "\n  owner PROBING"),
        ("\n  yes\n", "\n"),
    ):
        changed.write_text(text.replace(before, after, 1))
        with pytest.raises(AssertionError):
            check(changed, TabletMachine, rewrite=False)
        check(changed, TabletMachine, rewrite=True)
        check(changed, TabletMachine, rewrite=False)
