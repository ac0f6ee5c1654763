"""Exceptions that msgspec raises for invalid bytes."""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Invalid JSON or types, invalid UTF-8, and nesting beyond Python's recursion limit."""
