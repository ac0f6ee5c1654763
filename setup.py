"""Builds the wheel of `stele`; with STELE_COMPILE=1, as images do, mypyc compiles the modules of COMPILED.

All else about the distribution is in pyproject.toml. Without the variable it is plain Python.
What may not be compiled, and why, is in docs/decisions/0502-modules-compiled-by-mypyc.md.
"""

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup

COMPILED = (
    "core/transitions.py",
    "core/tablet/acknowledged.py",
    "core/tablet/follower.py",
    "core/tablet/leases.py",
    "core/tablet/log.py",
    "core/tablet/owner.py",
    "core/placement/assignment.py",
    "core/placement/balancer.py",
    "core/placement/draft.py",
    "core/placement/handover.py",
    "core/placement/ordering.py",
    "core/placement/owners.py",
    "core/placement/quotas.py",
    "core/placement/retained.py",
    "core/placement/shares.py",
    "core/placement/topology.py",
    "adapters/rpc/connection.py",
    "adapters/segments/positions.py",
    "member/turn_budget.py",
    "member/replication/delayed_replies.py",
    "member/replication/follower.py",
    "member/replication/latency.py",
    "member/replication/log_writer.py",
    "member/replication/operations.py",
    "member/replication/passes.py",
    "member/replication/replica.py",
    "member/replication/replicator.py",
    "member/replication/request.py",
    "member/replication/tablet_store.py",
    "member/resp/batching.py",
    "member/serving/executor.py",
    "member/serving/router.py",
    "member/serving/waiting.py",
    "member/storage/write_back.py",
)
"""What plans, and what each request of a member goes through."""

SOURCES = Path("operator/stele")
MYPY = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")
"""Types are checked elsewhere, with all that the project imports; here they only guide the compiler."""

SLICE = "CPyBytes_GetSlice"
"""A slice of bytes: where it begins after its end, plain Python has b"", and this raises SystemError."""


def extensions() -> list[Extension]:
    """One extension with all of COMPILED, and for each module a small one that hands it out."""
    if os.environ.get("STELE_COMPILE") != "1" or "bdist_wheel" not in sys.argv:
        return []
    from mypyc.build import mypycify

    files = [str(SOURCES / name) for name in COMPILED]
    # Without debug information: that would name the folder of the build.
    made = mypycify([*MYPY, *files], group_name="stele", debug_level="0", multi_file=True)
    refuse_slices(sorted({path for extension in made for path in extension.sources}))
    return made


def refuse_slices(generated: list[str]) -> None:
    """Fail when compiled code slices bytes."""
    called = re.compile(rf"\b{SLICE}\(")
    found = [
        f"{path}:{number}"
        for path in generated
        if Path(path).name.startswith("__native")
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1)
        if called.search(line)
    ]
    if found:
        text = "compiled code slices bytes, which differs from plain Python; change or do not compile"
        raise SystemExit(f"setup.py: {text}: {', '.join(found)}")


setup(ext_modules=extensions())
