"""The compiled module, where it is installed: functions of plain Python, for each byte and each command.

Plain Python is the reference, and does all of it where the module is missing: `compiled` is None then.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import stele_native as compiled
else:
    try:
        import stele_native as compiled
    except ImportError:
        compiled = None

__all__ = ["compiled"]
