"""What a planted bug is."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Plant = Callable[[], AbstractContextManager[Any]]
"""Patches one place of the product for as long as it is entered."""

Mutants = dict[Plant, tuple[str, int, str]]
"""Each with what was drawn, the first seed that killed it when this was written, and the rule that saw it."""
