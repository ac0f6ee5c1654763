"""Settings of all processes, from environment variables.

They are fields of a frozen dataclass, `NAME: TYPE = setting(...)`; bounds are part of the type (`Meta`).
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from stele.errors import BadInput

S = TypeVar("S")
VALUE_CHARS_SHOWN = 80

Port = Annotated[int, Meta(ge=1, le=65_535)]
Word = Annotated[str, Meta(pattern=r"^\S+$")]
PullPolicy = Literal["IfNotPresent", "Always", "Never"]


def setting(
    variable: str,
    meaning: str,
    *,
    default: Any = MISSING,
    expected: str = "",
    accepts: Callable[[Any], bool] = lambda _: True,
) -> Any:
    """Declare a field that a variable sets. `expected` is what it must be if the type does not say so."""
    metadata = {"variable": variable, "meaning": meaning, "expected": expected, "accepts": accepts}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class _Setting:
    """A field with its type."""

    field: Field[Any]
    kind: Any

    @property
    def variable(self) -> str:
        return str(self.field.metadata["variable"])

    @property
    def is_required(self) -> bool:
        return self.field.default is MISSING

    @property
    def expected(self) -> str:
        match inspect.type_info(self.kind):
            case inspect.IntType(ge=least, le=most):
                return f"a whole number from {least} to {most}"
            case inspect.EnumType(cls=choices):
                return f"one of {', '.join(choice.value for choice in choices)}"
            case inspect.LiteralType(values=values):
                return f"one of {', '.join(map(str, values))}"
        return str(self.field.metadata["expected"])

    def parse(self, text: str) -> Any:
        """Return the value; names of a tuple are separated by commas. Raises BadInput."""
        names = dict.fromkeys(name.strip() for name in text.split(","))
        given = list(filter(None, names)) if get_origin(self.kind) is tuple else text
        try:
            value = msgspec.convert(given, self.kind, strict=False, dec_hook=lambda kind, text: kind(text))
            if self.field.metadata["accepts"](value):
                return value
        except msgspec.ValidationError:
            pass
        raise BadInput(f"{self.variable} is '{text[:VALUE_CHARS_SHOWN]}'; it must be {self.expected}")

    def help(self) -> str:
        default = "required" if self.is_required else getattr(self.field.default, "value", self.field.default)
        text = ": ".join(filter(None, (self.field.metadata["meaning"], self.expected)))
        return f"{self.variable:<30}  {text} ({default or 'none'})"


def _settings(kind: type[Any]) -> Iterator[_Setting]:
    types = get_type_hints(kind, include_extras=True)
    return (_Setting(field, types[field.name]) for field in fields(kind) if field.metadata)


def read(kind: type[S], environment: Mapping[str, str]) -> S:
    """Read settings; a variable that is unset or empty leaves the default.

    Raises BadInput with the variable, its value and what it must be.
    """
    values = {}
    for setting in _settings(kind):
        if text := environment.get(setting.variable, "").strip():
            values[setting.field.name] = setting.parse(text)
        elif setting.is_required:
            must = setting.expected or setting.field.metadata["meaning"]
            raise BadInput(f"{setting.variable} is not set; it must be {must}")
    return kind(**values)


def parser_of(program: str, purpose: str, *kinds: type[Any]) -> argparse.ArgumentParser:
    """Return a parser without arguments, whose `--help` lists the variables."""
    return argparse.ArgumentParser(
        prog=program,
        description=f"{purpose} Configured by environment variables:",
        epilog="\n".join(setting.help() for kind in kinds for setting in _settings(kind)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
