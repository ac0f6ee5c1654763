"""Processes that start in milliseconds: a process that has imported everything forks them.

As a program, with `members` or `operator` as its argument, which says what it imports: reads lines of JSON
{env, log, what, arguments} and forks; writes {pid} for each, and {pid, code} when one ended. `what` is
`member`, `transfer`, or the module whose `main` is run as it is. In a forked `member` SIGUSR1 arms the crash
point in the file FOLDER.point, so that it can be reached late, and SIGUSR2 is a defect in a callback; POWER=1
makes the death take from the volume what was not synced; LIMITS, as JSON, are names of `stele.member.limits`
with other values.
"""

import importlib
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PIPE_BYTES = 65_536
IMPORTED = {
    "members": ("stele.member.process", "stele.transfer.__main__"),
    # Not with the members: all metrics of a process are in one registry.
    "operator": ("stele.master.__main__",),
}


def run_member() -> int:
    from stele.member import limits, process
    from stele.member.__main__ import main
    from stele.member.storage import failpoints

    for name, value in json.loads(os.environ.get("LIMITS", "{}")).items():
        assert hasattr(limits, name), name
        setattr(limits, name, value)
    if os.environ.get("POWER"):
        # Not before: the last release has no segments to watch.
        import power

        power.watch()
    serve = process.Process.run

    def fail() -> None:
        raise ValueError("a callback that fails")

    async def run(self: process.Process) -> int:
        import asyncio

        point = Path(os.environ["STELE_DATA_DIR"]).with_suffix(".point")
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: failpoints.arm(point.read_text()))
        loop.add_signal_handler(signal.SIGUSR2, fail)
        return await serve(self)

    process.Process.run = run  # type: ignore[method-assign]
    return main([])


def run_transfer() -> int:
    from stele.transfer import __main__ as program

    given = json.loads(os.environ.get("LIMITS", "{}"))
    program.CERTIFICATE_LOOK_SECONDS = given.get("CERTIFICATE_LOOK_SECONDS", program.CERTIFICATE_LOOK_SECONDS)
    return program.main([])


def run_module(name: str, arguments: list[str]) -> int:
    try:
        return int(importlib.import_module(name).main(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


RUNS = {"member": run_member, "transfer": run_transfer}


def _child(order: dict[str, Any]) -> None:
    """Never returns."""
    code = 70
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(order["env"])
        # As a new Python would.
        sys.path[:0] = filter(None, order["env"].get("PYTHONPATH", "").split(os.pathsep))
        run = RUNS.get(order["what"])
        code = run_module(order["what"], order["arguments"]) if run is None else run()
    except BaseException:
        logging.exception("the child failed")
    finally:
        sys.stdout.flush()
        os._exit(code)


def _lines(ended: Callable[[], None]) -> Iterator[bytes]:
    """Lines of standard input; `ended` is called in between, after each end of a child.

    The signal only writes to a pipe that is waited for: a handler in Python may come just after the look for
    signals before a read, and would wait until the next line.
    """
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, PIPE_BYTES)
            ended()
        if 0 in ready:
            data = os.read(0, PIPE_BYTES)
            if not data:
                return
            *whole, waiting = (waiting + data).split(b"\n")
            yield from whole


def main() -> None:
    for name in IMPORTED[sys.argv[1]]:
        importlib.import_module(name)
    out = os.dup(1)
    children: set[int] = set()

    def tell(**fields: int) -> None:
        os.write(out, json.dumps(fields).encode() + b"\n")

    def reap() -> None:
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            children.discard(pid)
            tell(pid=pid, code=os.waitstatus_to_exitcode(status))

    for line in _lines(reap):
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(out)
            _child(json.loads(line))
        children.add(pid)
        tell(pid=pid)
    # The tests are over, however they ended; none of their processes outlives them.
    for pid in list(children):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
