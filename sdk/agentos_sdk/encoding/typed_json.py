"""Decodes JSON into typed values with msgspec: one decoder per type, built when it is first used.

It accepts only what ``codec.decode`` accepts, and makes the same values of it. Whatever else it meets, it raises
``ValueError`` without a sentence worth showing: the strict rules then find the mistakes and word them.

``has_plain_fields`` tells which classes msgspec may also encode.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, reduce
from operator import or_
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs
import msgspec
from attrs import NOTHING
from msgspec import UNSET, Meta, Raw
from msgspec.structs import asdict

from agentos_sdk.encoding.quantities import Size
from agentos_sdk.encoding.strict import CONVERTER, Rule, Text, wire_name

Convert = Callable[[Any], Any]

ESCAPED_NUL = rb"\u0000"  # strict strings don't allow it, msgspec's do
INT64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


@cache
def decoder(cls: type, raw: Collection[str] = ()) -> Callable[[bytes], Any]:
    """A function from JSON to ``cls``, an attrs class. Its fields in ``raw`` become ``msgspec.Raw`` and aren't read.

    It raises ``ValueError`` if the JSON doesn't match, or if only the strict rules can tell.
    """
    shape, build = _class(cls, raw)
    decode = msgspec.json.Decoder(shape).decode

    def read(data: bytes) -> Any:
        if ESCAPED_NUL in data:
            raise ValueError("a NUL character")
        return build(decode(data))

    return read


def _plan(kind: Any) -> tuple[Any, Convert | None]:
    """The type that msgspec reads for ``kind``, and what makes of its value one of ``kind``.

    Types with rules of their own (durations, sizes, floats, unions) are read as any JSON, for their strict rule.
    """
    origin, of = get_origin(kind), get_args(kind)
    if kind in (str, Text):
        return str, None
    if kind is int:
        return INT64, None
    if kind in (Any, object):
        return Any, None
    if kind is bool or origin is Literal:
        return kind, None
    if origin is Annotated:
        return _annotated(of[0], [rule for rule in of[1:] if isinstance(rule, Rule)])
    if origin in (Union, UnionType):
        return _union(kind)
    if origin in (list, tuple, Sequence):
        return _array(of[0], list if origin is list else tuple)
    if origin in (dict, Mapping) and of[0] is str:
        return _mapping(of[1])
    if attrs.has(kind):
        return _class(kind)
    return _strict(kind)


def _strict(kind: Any) -> tuple[Any, Convert]:
    read = CONVERTER.get_structure_hook(kind)
    return Any, lambda value: read(value, kind)


def _annotated(kind: Any, rules: Sequence[Rule]) -> tuple[Any, Convert | None]:
    plain, convert = _plan(kind)
    for rule in rules:
        convert = _checked(convert, rule)
    return plain, convert


def _checked(convert: Convert | None, rule: Rule) -> Convert:
    holds, expected = rule.holds, rule.expected

    def checked(value: Any) -> Any:
        if convert:
            value = convert(value)
        if not holds(value):
            raise ValueError(expected)
        return value

    return checked


def _union(kind: Any) -> tuple[Any, Convert | None]:
    """A union. Msgspec reads it if its members have different JSON types, otherwise the strict rules do."""
    plans = [_plan(member) for member in get_args(kind) if member is not NoneType]
    converts = {_runtime_type(plain): convert for plain, convert in plans}
    if Any in converts or len(converts) < len(plans):
        return _strict(kind)
    if NoneType in get_args(kind):
        plans.append((None, None))
        converts[NoneType] = None
    plain = reduce(or_, (plain for plain, _ in plans))
    if not any(converts.values()):
        return plain, None

    def converted(value: Any) -> Any:
        convert = converts[type(value)]
        return convert(value) if convert else value

    return plain, converted


def _runtime_type(plain: Any) -> Any:
    """The type of the values that msgspec makes for a type in a plan."""
    if get_origin(plain) is Literal:
        return type(get_args(plain)[0])
    return int if plain is INT64 else get_origin(plain) or plain


def _array(kind: Any, make: Callable[[list[Any]], Any]) -> tuple[Any, Convert | None]:
    plain, convert = _plan(kind)
    if convert is None:
        return GenericAlias(list, plain), make
    return GenericAlias(list, plain), lambda items: make([convert(item) for item in items])


def _mapping(kind: Any) -> tuple[Any, Convert | None]:
    plain, convert = _plan(kind)
    if convert is None:
        return GenericAlias(dict, (str, plain)), None
    return GenericAlias(dict, (str, plain)), lambda items: {key: convert(item) for key, item in items.items()}


def _class(cls: Any, raw: Collection[str] = ()) -> tuple[type[msgspec.Struct], Convert]:
    """A struct with the same fields, which unlike an attrs class refuses unknown ones; and what makes ``cls`` of it."""
    fields, converts = [], []
    for field in attrs.fields(attrs.resolve_types(cls)):
        if field.init:
            plain, convert = (Raw, None) if field.name in raw else _plan(field.type)
            fields.append((field.name, plain) if field.default is NOTHING else (field.name, plain, UNSET))
            converts.append((field.name, convert))
    shape = msgspec.defstruct(cls.__name__, fields, rename=wire_name, forbid_unknown_fields=True, kw_only=True)

    def build(found: msgspec.Struct) -> Any:
        given = asdict(found)
        for name, convert in converts:
            if given[name] is UNSET:
                del given[name]
            elif convert:
                given[name] = convert(given[name])
        return cls(**given)

    return shape, build


@cache
def has_plain_fields(kind: Any) -> bool:
    """Whether this is an attrs class and msgspec encodes all its fields like the standard library's ``json``."""
    return attrs.has(kind) and all(_is_plain(field.type) for field in attrs.fields(attrs.resolve_types(kind)))


def _is_plain(kind: Any) -> bool:
    """Not plain: floats (``1e-07`` becomes ``1e-7``, NaN ``null``), classes (another order), what may be anything."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return all(map(_is_plain, of))
    if origin in (Annotated, list, tuple, Sequence):
        return _is_plain(of[0])
    if origin in (dict, Mapping):
        return of[0] is str and _is_plain(of[1])
    return kind in (str, Text, int, Size, bool, NoneType) or origin is Literal
