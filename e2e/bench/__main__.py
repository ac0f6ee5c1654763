"""`python -m e2e.bench`."""

import sys

from e2e.bench.cli import main

sys.exit(main())
