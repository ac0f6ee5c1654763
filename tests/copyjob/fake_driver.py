"""The driver process with a Spark context that runs tasks in its own threads; the rest is the real program.

FAKE_DRIVER_FAULT in the environment chooses what goes wrong: `no-start`, `no-executors`, `crash` (ends when a
job comes), `noise` (writes to its standard output as a JVM does).
"""

import os
import sys
import threading
import time
from types import SimpleNamespace

from stele.copyjob import driver
from stele.transfer.client import copy

FAULT = os.environ.get("FAKE_DRIVER_FAULT", "")
ATTEMPTS = 3


class Context:
    applicationId = "fake-1"  # noqa: N815  Spark's own name

    def __init__(self):
        self._local = threading.local()
        self._cancelled = set()
        executors = [None] if FAULT == "no-executors" else [None, None]
        tracker = SimpleNamespace(getExecutorInfos=lambda: executors)
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: tracker))

    def setJobGroup(self, group, text, interruptOnCancel):  # noqa: N802, N803  Spark's own names
        self._local.group = group

    def cancelJobGroup(self, group):  # noqa: N802  Spark's own name
        self._cancelled.add(group)

    def parallelize(self, items, slices):
        assert slices == len(items)
        return SimpleNamespace(map=lambda task: SimpleNamespace(collect=lambda: self._collect(items, task)))

    def _collect(self, items, task):
        while FAULT == "no-executors":
            self._check()
            time.sleep(0.01)
        return [self._attempts(item, task) for item in items]

    def _attempts(self, item, task):
        for attempt in range(ATTEMPTS):
            self._check()
            try:
                return task(item)
            except RuntimeError as error:
                if attempt + 1 == ATTEMPTS:
                    raise ValueError(f"Job aborted: Traceback\n  {error}\n and more") from None
        raise AssertionError

    def _check(self):
        if FAULT == "crash":
            os._exit(1)
        if self._local.group in self._cancelled:
            raise ValueError(f"Job 0 cancelled part of cancelled job group {self._local.group}")

    def stop(self):
        pass


def make(start):
    if FAULT == "no-start":
        raise ValueError("pods is forbidden:\n cannot create resource")
    if FAULT == "noise":
        print("WARN something\n" * 100)
    return Context(), threading.Thread


if __name__ == "__main__":
    copy.BACKOFF_SECONDS = 0.001
    sys.exit(driver.main(sys.argv[1:], make))
