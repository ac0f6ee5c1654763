"""`python -m e2e.supply`."""

import sys

from e2e.supply.cli import main

sys.exit(main())
