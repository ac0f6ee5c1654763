"""The compiled module, where it is installed: the same functions as in plain Python, for each byte and command.

Plain Python is the reference, and what runs where the module is missing. `compiled` is None then.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import stele_native as compiled
else:
    try:
        import stele_native as compiled
    except ImportError:
        compiled = None
