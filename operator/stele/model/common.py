"""Foundations of all resources: API names, the base model, quantities, CEL rules, reading."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

T = TypeVar("T")

GROUP = "stele.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "stele"

CLUSTER_NAME_LENGTH = 40
"""Longest name of a cluster: derived names append to it and must stay within 63 characters."""

QUANTITY_LENGTH = 32
"""Longest quantity; without a limit the API server rejects CEL rules on it as too costly."""

SHOWN_LENGTH = 80
"""Characters of an invalid value that an error message repeats."""

NOT_SHOWN = "(not shown)"
"""What an error message has in place of a value that may be a password."""

ALL = "x-kubernetes-validations"
"""Key of the CEL rules in a structural schema."""

SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,2})|([KMGTPE]i|[numkMGTPE]))?", re.ASCII)


class Model(BaseModel):
    """A value with snake_case names in Python and camelCase names in YAML; ignores unknown fields.

    The API server prunes unknown fields (or rejects them, under strict validation), but a newer operator may
    have stored fields that this version lacks.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the model as the API server expects it: camelCase, plain JSON values, no nulls."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def parse_quantity(text: str | int | float) -> Decimal:
    """Return the number that a quantity (`2Gi`, `500m`, `1e3`) stands for. Raises ValueError."""
    match = QUANTITY.fullmatch(str(text))
    if match is None or len(str(text)) > QUANTITY_LENGTH:
        raise ValueError(
            f"{shown(text)} is not a quantity; write a number with an optional unit, such as 2Gi"
        )
    number, exponent, suffix = match.groups()
    return Decimal(number + (exponent or "")) * SUFFIXES[suffix or ""]


def quantity_bytes(text: str | int) -> int:
    """Return a quantity as whole bytes, rounded up as in Kubernetes."""
    value = parse_quantity(text)
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


def _checked_quantity(text: str) -> str:
    if parse_quantity(text) <= 0:
        raise ValueError(f"{text!r} is not above zero; write a quantity such as 2Gi")
    return text


def _checked_amount(text: str) -> str:
    if parse_quantity(text) < 0:
        raise ValueError(f"{text!r} is below zero; write a quantity such as 500m or 2Gi")
    return text


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_number_as_text),
    AfterValidator(_checked_quantity),
    Field(max_length=QUANTITY_LENGTH),
]
"""A positive quantity, kept as it was written."""

Amount = Annotated[
    str,
    BeforeValidator(_number_as_text),
    AfterValidator(_checked_amount),
    Field(
        max_length=QUANTITY_LENGTH,
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            ALL: [
                {
                    "rule": "type(self) == int ? self >= 0 : isQuantity(string(self))"
                    " && quantity(string(self)).compareTo(quantity('0')) >= 0",
                    "message": "must be a quantity that is not negative, such as 500m, 2 or 2Gi",
                }
            ],
        },
    ),
]
"""A quantity as pods have it: a number or text, zero allowed, kept as text."""


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return schema extras with CEL rules, each a pair of expression and message."""
    return {ALL: [{"rule": rule, "message": message} for rule, message in rules]}


def matching(pattern: str, length: int, message: str, *rules: tuple[str, str], **more: Any) -> Any:
    """Return the field of a text of limited length that matches a pattern.

    `message` is the error for one that does not; `rules` are further CEL rules, `more` is what Field takes.
    """
    extra = cel((f"self.matches('{pattern}')", message), *rules)
    return Field(max_length=length, pattern=pattern, json_schema_extra=extra, **more)


def _text_cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return `cel` rules for a text of limited length, whose messages repeat the invalid value.

    Messages for numbers cannot: the API server estimates a number's text as unbounded and rejects the rule as
    too costly. For `minimum` and `maximum` it adds a message with the value itself.
    """
    shown = [
        {
            "rule": rule,
            "message": message,
            "messageExpression": f"{json.dumps(message + '; given: ')} + self",
        }
        for rule, message in rules
    ]
    return {ALL: shown}


def whole(name: str, low: int, high: int, default: Any = ..., do: str = "", *rules: tuple[str, str]) -> Any:
    """Return the field of a whole number from low to high.

    `do` ends the error message with a remedy; `rules` are further CEL rules.
    """
    hint = f"; {do}" if do else ""
    ends = (f"self >= {low} && self <= {high}", f"{name} must be a whole number from {low} to {high}{hint}")
    size = "int32" if high < 2**31 else "int64"
    return Field(default, ge=low, le=high, json_schema_extra={"format": size, **cel(ends, *rules)})


def seconds(name: str, low: float, high: float, default: float) -> Any:
    """Return the field of a number of seconds from low to high; fractions are allowed."""
    ends = (f"self >= {low:.3f} && self <= {high:.3f}", f"{name} must be from {low:g} to {high:g} seconds")
    return Field(default, ge=low, le=high, json_schema_extra=cel(ends))


def quantity(name: str, default: Any = ..., *rules: tuple[str, str]) -> Any:
    """Return the field of a positive quantity of bytes; `rules` are further CEL rules."""
    good = "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))"
    message = f"{name} must be a quantity of bytes above zero, such as 512Mi or 2Gi"
    return Field(default, max_length=QUANTITY_LENGTH, json_schema_extra=_text_cel((good, message), *rules))


def count() -> Any:
    """Return the field of a counter in a status, 0 until the operator has counted."""
    return Field(default=0, json_schema_extra={"format": "int64"})


class OwnerReference(Model):
    """An object's owner; the garbage collector deletes the object after its owner."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Model):
    """The metadata fields that Stele reads."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


@dataclass(frozen=True)
class FieldProblem:
    """One invalid field of a stored object: its path, the value (shortened) and what was expected."""

    field: str
    value: str
    message: str

    def __str__(self) -> str:
        return f"{self.field} is {self.value}: {self.message}"


@dataclass(frozen=True)
class Unreadable:
    """A stored object that fails validation.

    The operator reports it and leaves the running cluster as it is.
    """

    kind: str
    namespace: str
    name: str
    problems: tuple[FieldProblem, ...]
    generation: int = 0

    def __str__(self) -> str:
        listed = "; ".join(str(problem) for problem in self.problems)
        return f"{self.kind} {self.namespace}/{self.name} is invalid: {listed}; correct it with kubectl edit"


class Resource(Model):
    """Base of the API's objects; subclasses add `spec` and `status`.

    Stored objects become models through `read` alone.
    """

    KIND: ClassVar[str]
    PLURAL: ClassVar[str]
    PRIVATE: ClassVar[str] = ""
    """Path of a field in which people may write a password: errors do not repeat what it has."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta

    @property
    def key(self) -> tuple[str, str]:
        """Return namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @classmethod
    def read(cls, stored: object) -> Self | Unreadable:
        """Return the model of a stored object, or why it is invalid; never raises.

        An invalid status is ignored: it is rebuilt from observations.
        """
        try:
            return cls.model_validate(stored)
        except ValidationError as error:
            problems = _problems(error, cls.PRIVATE)
        if isinstance(stored, Mapping) and all(problem.field.startswith("status") for problem in problems):
            return cls.read({key: value for key, value in stored.items() if key != "status"})
        named = _meta(stored, "namespace", "?"), _meta(stored, "name", "?")
        return Unreadable(cls.KIND, *named, problems, _meta(stored, "generation", 0))


def _problems(error: ValidationError, private: str) -> tuple[FieldProblem, ...]:
    details = error.errors(include_url=False, include_context=False)
    return tuple(
        FieldProblem(
            _path(detail["loc"]) or "the object",
            NOT_SHOWN if private and _has(detail, private) else shown(detail["input"]),
            detail["msg"],
        )
        for detail in details
    )


def _path(parts: tuple[int | str, ...]) -> str:
    return ".".join(map(str, parts))


def _has(detail: "ErrorDetails", private: str) -> bool:
    """Return whether what is wrong, or lacks a field, has this field or is part of it."""
    value = _path(detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"])
    return not value or f"{value}.".startswith(f"{private}.") or f"{private}.".startswith(f"{value}.")


def shown(value: object) -> str:
    """Render a value for an error message: one line, shortened."""
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "..."


def _meta(stored: object, name: str, otherwise: T) -> T:
    """Return a field of the metadata if it is of the type of `otherwise`."""
    metadata = stored.get("metadata") if isinstance(stored, Mapping) else None
    value = metadata.get(name) if isinstance(metadata, Mapping) else None
    return value if isinstance(value, type(otherwise)) else otherwise
