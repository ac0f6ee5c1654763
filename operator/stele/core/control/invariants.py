"""Invariants. A broken one is a defect of Stele.

A decision that raises has stored and sent nothing: the leadership ends, its memory is dropped, and a new one
starts from the table and the members' reports (docs/internals/operator.md, "When a decision fails").
"""


class BrokenInvariant(AssertionError):  # noqa: N818  says what happened, as the names in errors do
    """The memory of a leadership contradicts itself."""


def hold(condition: object, text: str, *shown: object) -> None:
    """Raise BrokenInvariant with `text`, formatted with `shown`, unless the condition holds."""
    if not condition:
        raise BrokenInvariant(text.format(*shown))
