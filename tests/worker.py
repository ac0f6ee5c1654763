"""Which of the processes of a test run this one is: those that run at once keep to addresses of their own."""

import os

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
