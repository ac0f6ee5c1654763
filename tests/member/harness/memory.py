"""How much memory a process takes."""

from pathlib import Path

from tests.member.harness.cluster import Process


def peak_bytes(process: Process | None) -> int:
    """The most memory that the process has had since `forget_peak`."""
    assert process is not None
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak(process: Process | None) -> int:
    """The memory that the process has now."""
    assert process is not None
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    return peak_bytes(process)
