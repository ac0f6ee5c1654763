"""Valid values of msgspec types, as trees: with every field, and with those alone that must be there."""

from itertools import chain
from typing import Any

from msgspec import inspect

from tests.fuzz.mutate import Codec


def encoded(codec: Codec, *kinds: Any, prefix: bytes = b"") -> list[bytes]:
    """Return samples of types, each kind of a union."""
    return [prefix + codec.encode(tree) for kind in kinds for tree in trees(kind)]


def trees(kind: Any) -> list[Any]:
    """Return valid trees of a type, each kind of a union: full and bare."""
    described = inspect.type_info(kind)
    kinds = described.types if isinstance(described, inspect.UnionType) else (described,)
    return [_tree(each, full) for each in kinds for full in (True, False)]


def _tree(kind: inspect.Type, full: bool) -> Any:
    match kind:
        case inspect.StructType():
            return _struct(kind, full)
        case inspect.DataclassType() | inspect.TypedDictType():
            fields = (each for each in kind.fields if full or each.required)
            return {each.encode_name: _tree(each.type, full) for each in fields}
        case inspect.NamedTupleType():
            return [_tree(each.type, full) for each in kind.fields]
        case inspect.TupleType():
            return [_tree(each, full) for each in kind.item_types]
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            return _items(kind, full)
        case inspect.DictType():
            return {_tree(kind.key_type, full): _tree(kind.value_type, full)} if full else {}
        case inspect.UnionType():
            return _tree(next(each for each in kind.types if not isinstance(each, inspect.NoneType)), full)
        case _:
            return _scalar(kind)


def _struct(kind: inspect.StructType, full: bool) -> Any:
    fields = [each for each in kind.fields if full or each.required]
    values = [_tree(each.type, full) for each in fields]
    if kind.array_like:
        return values if kind.tag is None else [kind.tag, *values]
    named = dict(zip((each.encode_name for each in fields), values, strict=True))
    return named if kind.tag is None else {str(kind.tag_field): kind.tag, **named}


def _items(kind: Any, full: bool) -> list[Any]:
    item, least = kind.item_type, kind.min_length or 0
    if not full:
        return [_tree(item, full) for _ in range(least)]
    if isinstance(item, inspect.UnionType):
        kinds = [each for each in item.types if not isinstance(each, inspect.NoneType)]
        several = [_tree(each, True) for each in kinds]
    else:
        several = [_tree(item, True)]
    return list(chain(several, several * least))


def _scalar(kind: inspect.Type) -> Any:
    match kind:
        case inspect.IntType():
            return kind.ge if kind.ge else 3
        case inspect.FloatType():
            return 1.5
        case inspect.StrType():
            return "demo-0"[: kind.max_length]
        case inspect.BytesType():
            return b"key-0"[: kind.max_length]
        case inspect.BoolType():
            return True
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.NoneType():
            return None
        case _:
            return {}
