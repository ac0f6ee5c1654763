"""Run the playground as `python -m stele.playground`."""

import sys

from stele.playground.main import main

if __name__ == "__main__":
    sys.exit(main())
