"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output
from stele.core.tablet import log

ROOT = Path(__file__).resolve().parents[2]
GIT_SECONDS_MAX = 10.0


def facts() -> dict[str, str | int | float]:
    """Cores that may be used, memory, processor, Python, whether Stele's modules are compiled as in images
    (`setup.py`), the commit, and how busy the machine is already."""
    return {
        "commit": commit(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processor": _processor(),
        "python": platform.python_version(),
        "modules": "compiled" if are_modules_compiled() else "plain",
        "load_before": round(os.getloadavg()[0], 2),
    }


def are_modules_compiled() -> bool:
    """Whether this process, and those that it starts, import modules as images have them."""
    return str(log.__file__).endswith(".so")


def commit() -> str:
    """The checkout's commit, with `-dirty` when files were changed since; `unknown` without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        return output(command, seconds_max=GIT_SECONDS_MAX)
    except ClusterError:
        return "unknown"


def cpu_seconds(pid: int, *, with_children: bool = False) -> float:
    """User and system time of a process so far, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = map(int, fields[11 : 15 if with_children else 13])
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
