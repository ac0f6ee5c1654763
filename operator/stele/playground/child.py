"""`python -m stele.playground.child PROGRAM ...`: run a program of a pod, and end when the playground does.

Not even a playground that is killed leaves members behind, which would hold their volumes and ports.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """`arguments`: the id of the process that started this one, the program, and the program's own."""
    parent, program, *own = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return 1
    return _program(program)(own)


def _program(name: str) -> Callable[[list[str]], int]:
    if name == "stele-member":
        from stele.member.__main__ import main as member

        return member
    if name == "stele-transfer":
        from stele.transfer.__main__ import main as transfer

        return transfer
    if name == "stele-copier":
        from stele.copyjob.__main__ import main as copier

        return copier
    raise SystemExit(f"{name} is not a program of members and copiers")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
