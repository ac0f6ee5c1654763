"""Run `kubectl stele` as `python -m stele.cli`."""

import sys

from stele.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
