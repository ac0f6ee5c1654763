"""What msgspec raises for bytes that are not what is expected."""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Another kind or no JSON, text that is no UTF-8, and what is nested deeper than Python goes."""
