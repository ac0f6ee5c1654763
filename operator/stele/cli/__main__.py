"""`python -m stele.cli`, the same as `kubectl stele`."""

import sys

from stele.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
