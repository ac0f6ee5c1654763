"""Of loops that pass through every case `make test` runs a sample; `make test-long` runs the others."""

from typing import Any

import pytest


def sampled(*values: Any, kept: bool) -> Any:
    """Return the values of one case, as `pytest.mark.parametrize` takes them; `long` unless it is kept."""
    return pytest.param(*values, marks=() if kept else pytest.mark.long)
