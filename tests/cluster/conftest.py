"""Makes the tools in `e2e/` importable: they are not part of the installed distribution."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
