"""Which of the processes of a test run this one is: those that run at once keep to addresses of their own."""

import itertools
import os
from collections.abc import Iterator

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def networks(second: int) -> Iterator[str]:
    """Prefixes `127.x.y` of loopback networks of this process alone; x is `second` for the first worker."""
    # Runs side by side begin elsewhere, as their process numbers differ.
    return (f"127.{second + 10 * WORKER}.{number % 250}" for number in itertools.count(os.getpid()))
