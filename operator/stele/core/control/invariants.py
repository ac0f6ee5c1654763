"""What must hold whatever happens. A broken invariant is a defect of Stele, and no reason to go on.

A decision that raises has stored and sent nothing: the leadership ends, its memory is dropped, and another
one begins from the table and from what members report (docs/internals/operator.md, "When a decision fails").
"""


class BrokenInvariant(AssertionError):  # noqa: N818  says what happened, as the names in errors do
    """The memory of a leadership contradicts itself."""


def hold(condition: object, text: str, *shown: object) -> None:
    """Raise BrokenInvariant with the text, and what it shows, unless the condition holds."""
    if not condition:
        raise BrokenInvariant(text.format(*shown))
