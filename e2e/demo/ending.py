"""How a command line ends: with an exit code and a sentence, never a traceback."""

from __future__ import annotations

import signal
from collections.abc import Callable

from e2e.cluster.errors import ClusterError, MachineUnfitError
from e2e.cluster.steps import say
from e2e.demo.errors import DemoError, PreflightError
from e2e.demo.report import EXIT_BROKEN, EXIT_INTERRUPTED, EXIT_PREFLIGHT


def exit_code_of(work: Callable[[], int], interrupted: str) -> int:
    """Do the work; the process's exit code. `interrupted` is said when Ctrl-C or SIGTERM ended it."""
    # A request to end is as good as Ctrl-C: what has to be undone is undone in order.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return work()
    except (PreflightError, MachineUnfitError) as error:
        say(str(error))
        return EXIT_PREFLIGHT
    except (DemoError, ClusterError) as error:
        say(f"Error: {error}")
        return EXIT_BROKEN
    except KeyboardInterrupt:
        say(interrupted)
        return EXIT_INTERRUPTED
