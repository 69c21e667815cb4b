"""Strict type checks and their messages: the rules behind ``codec.decode``."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import attrs
from cattrs import Converter

from agentos_sdk.clients.suggestions import SYNONYMS, suggest_name
from agentos_sdk.encoding import quantities
from agentos_sdk.encoding.quantities import CpuShare, Seconds, Size

Text = NewType("Text", str)  # a string that may hold NUL, such as a file's content; a plain ``str`` may not

Keys = tuple[str | int, ...]
Hook = Callable[[Any, Any], Any]

MAX_MISTAKES = 20  # mistakes reported per array or object
MAX_SHOWN_CHARS = 60  # characters of a wrong string that are shown
MAX_URL_CHARS = 2000
MAX_SECONDS = 100 * 366 * 86400.0  # of a duration: a clock and a time since the epoch can hold the sum with it
PASSWORD = re.compile(r"(?<=://)[^/\s]*(?=@)")  # the user and the password in a URL


@attrs.frozen
class Rule:
    """In ``Annotated[int, Rule(...)]``: a condition on a value, and its wording (``a port from 1 to 65535``)."""

    holds: Callable[[Any], object]
    expected: str


class Unexpected(ValueError):
    """A value isn't what was expected; a union joins what its members expected."""

    def __init__(self, data: object, *expected: str) -> None:
        super().__init__(data, *expected)
        self.data = data
        self.expected = expected

    def __str__(self) -> str:
        *most, last = dict.fromkeys(self.expected)
        synonym = SYNONYMS.get(self.data) if isinstance(self.data, str) else None
        hint = f", did you mean {synonym}?" if synonym in self.expected else ""
        return f"expected {', '.join(most) + ' or ' if most else ''}{last}, got {quote(self.data)}{hint}"


class Several(ValueError):
    """The mistakes inside a value, each with the keys that lead to it."""

    def __init__(self, found: Iterable[tuple[Keys, str]]) -> None:
        super().__init__()
        self.found = list(found)


def mistakes(error: Exception, at: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """All mistakes in an exception of a hook. Anything but a ``ValueError`` is a bug of ours and is raised again."""
    if isinstance(error, Several):
        for keys, message in error.found:
            yield (*at, *keys), message
    elif isinstance(error, ValueError):
        yield at, str(error)
    else:
        raise error


def quote(data: object) -> str:
    """A value as it is shown in a message; always short."""
    match data:
        case str():
            shown = PASSWORD.sub("…", data[:MAX_URL_CHARS])
            return repr(shown if len(shown) <= MAX_SHOWN_CHARS else shown[:MAX_SHOWN_CHARS] + "…")
        case None | bool():
            return {None: "null", True: "true", False: "false"}[data]
        case int():
            return str(data) if _fits(data) else "a very large number"
        case float():
            return str(data)
        case list() | tuple():
            return "an array" if data else "an empty array"
        case Mapping():
            return "keys and values"
    return f"a {type(data).__name__}"  # TOML has dates and times


def strict_converter() -> Converter:
    """A converter without implicit conversions."""
    converter = Converter()
    for kind, hook in {str: _string, int: _integer, float: _number, bool: _boolean}.items():
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook(Text, _text)
    duration = _quantity(quantities.seconds, quantities.EXPECTED_DURATION)
    converter.register_structure_hook(
        Seconds, _checked(duration, Seconds, MAX_SECONDS.__ge__, "a duration of at most 100 years")
    )
    converter.register_structure_hook(Size, _quantity(quantities.size, quantities.EXPECTED_SIZE))
    converter.register_structure_hook(CpuShare, _quantity(quantities.cpu_share, quantities.EXPECTED_CPU_SHARE))
    converter.register_structure_hook_func(lambda kind: kind in (Any, object), lambda data, _: data)
    for origins, factory in (
        ((Literal,), _literal),
        ((Union, UnionType), _union),
        ((Annotated,), _annotated),
        ((list, tuple, Sequence), _array),
        ((dict, Mapping), _mapping),
    ):
        converter.register_structure_hook_factory(_has_origin(origins), factory)
    converter.register_structure_hook_factory(attrs.has, _class)
    return converter


def _has_origin(origins: tuple[object, ...]) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) in origins


def _text(data: Any, _: Any) -> str:
    if type(data) is not str:
        raise Unexpected(data, "a string")
    if not data.isascii():
        try:
            data.encode()
        except UnicodeEncodeError:
            raise ValueError("expected a string, got half of a surrogate pair in one") from None
    return data


def _string(data: Any, kind: Any) -> str:
    text = _text(data, kind)
    if "\0" in text:
        raise ValueError("expected a string, got a NUL character in one")
    return text


def _fits(data: int) -> bool:
    return -(1 << 63) <= data < 1 << 63


def _integer(data: Any, _: Any) -> int:
    if type(data) is not int or not -(1 << 63) <= data < 1 << 63:
        raise Unexpected(data, "a whole number")
    return data


def _number(data: Any, _: Any) -> float:
    if type(data) is int and _fits(data):
        return float(data)
    if type(data) is not float or not math.isfinite(data):
        raise Unexpected(data, "a number")
    return data


def _boolean(data: Any, _: Any) -> bool:
    if type(data) is not bool:
        raise Unexpected(data, "true", "false")
    return data


def _quantity(read: Callable[[object], float | None], expected: str) -> Hook:
    def hook(data: Any, _: Any) -> float:
        found = read(data)
        if found is None:
            raise Unexpected(data, expected)
        return found

    return hook


def _literal(kind: Any, _: Converter) -> Hook:
    allowed = {(type(value), value): value for value in get_args(kind)}
    types = {type(value) for value in get_args(kind)}
    words = [value if isinstance(value, str) else quote(value) for value in get_args(kind)]

    def hook(data: Any, _: Any) -> object:
        if type(data) not in types or (type(data), data) not in allowed:
            raise Unexpected(data, *words)
        return data

    return hook


def _annotated(kind: Any, converter: Converter) -> Hook:
    plain, *rules = get_args(kind)
    read = converter.get_structure_hook(plain)
    for rule in rules:
        if isinstance(rule, Rule):
            read = _checked(read, plain, rule.holds, rule.expected)
    return read


def _checked(read: Hook, plain: Any, holds: Callable[[Any], object], expected: str) -> Hook:
    def hook(data: Any, _: Any) -> object:
        value = read(data, plain)
        if not holds(value):
            raise Unexpected(data, expected)
        return value

    return hook


_SHAPES: Mapping[Any, type] = {str: str, Text: str, list: list, tuple: list, Sequence: list, dict: dict, Mapping: dict}


def _union(kind: Any, converter: Converter) -> Hook:
    optional = NoneType in get_args(kind)
    members = [member for member in get_args(kind) if member is not NoneType]
    hooks = [(converter.get_structure_hook(member), member) for member in members]
    by_shape: dict[type, tuple[Hook, Any]] = {}  # members that alone can be values of a type: tried first
    for read, member in hooks:
        if (shape := _SHAPES.get(get_origin(member) or member)) is None:
            break
        by_shape.setdefault(shape, (read, member))

    def hook(data: Any, _: Any) -> object:
        if data is None and optional:
            return None
        if len(hooks) == 1:
            return hooks[0][0](data, members[0])
        if type(data) in by_shape:
            read, member = by_shape[type(data)]
            try:
                return read(data, member)
            except ValueError:
                pass  # worded below
        expected: list[str] = []
        inside: ValueError | None = None  # the member that matches the data's shape has the best message
        for read, member in hooks:
            try:
                return read(data, member)
            except Unexpected as error:
                expected += error.expected
            except ValueError as error:
                inside = inside or error
        raise inside or Unexpected(data, *expected)

    return hook


def _array(kind: Any, converter: Converter) -> Hook:
    item, *rest = get_args(kind)
    make = list if get_origin(kind) is list else tuple
    if make is tuple and rest not in ([], [...]):
        raise TypeError(f"{kind}: only arrays of items of one type can be read")
    read = converter.get_structure_hook(item)

    def hook(data: Any, _: Any) -> object:
        if type(data) is not list:
            raise Unexpected(data, _array_of_words(data) if item is str and type(data) is str else "an array")
        try:
            if item is str:  # one check for all: 16,000 would take 2 ms
                _string("".join(data), item)
                return make(data)
            return make([read(each, item) for each in data])
        except (ValueError, TypeError):
            raise Several(_limit_mistakes(_in_items(enumerate(data), read, item))) from None

    return hook


def _array_of_words(text: str) -> str:
    """What an array of strings would be in place of a short string: ``["sleep", "1000"]``."""
    import json
    import shlex  # only a mistake needs them

    try:
        words = shlex.split(text) if len(text) <= MAX_SHOWN_CHARS and text.isprintable() else []
    except ValueError:  # a quote is open
        words = []
    return json.dumps(words, ensure_ascii=False) if words else "an array"


def _mapping(kind: Any, converter: Converter) -> Hook:
    key_kind, item = get_args(kind)
    read_key, read = converter.get_structure_hook(key_kind), converter.get_structure_hook(item)

    def hook(data: Any, _: Any) -> object:
        if type(data) is not dict:
            raise Unexpected(data, "keys and values")
        try:
            return {read_key(key, key_kind): read(each, item) for key, each in data.items()}
        except ValueError:
            keys = _in_items(((key, key) for key in data), read_key, key_kind)
            raise Several([*_limit_mistakes(keys), *_limit_mistakes(_in_items(data.items(), read, item))]) from None

    return hook


def _in_items(items: Iterable[tuple[Any, Any]], read: Hook, kind: Any) -> Iterator[tuple[Keys, str]]:
    for key, each in items:
        try:
            read(each, kind)
        except ValueError as error:
            yield from mistakes(error, (key,))


def _limit_mistakes(found: Iterator[tuple[Keys, str]]) -> Iterator[tuple[Keys, str]]:
    for count, mistake in enumerate(found):
        if count == MAX_MISTAKES:
            yield (), "more mistakes than are shown here"
            return
        yield mistake


def wire_name(name: str) -> str:
    """The name of a field outside of Python: ``as_`` is ``as``, a Python keyword."""
    return name.removesuffix("_")


def _class(cls: Any, converter: Converter) -> Hook:
    """The hook of an attrs class; cattrs' own would compile source text for each class, which takes 1 ms."""
    fields: Mapping[str, tuple[Any, Hook]] | None = None  # by their names on the wire

    def hook(data: Any, _: Any) -> object:
        nonlocal fields
        if type(data) is not dict:
            raise Unexpected(data, "keys and values")
        if fields is None:  # not before: a class may refer to itself, in quotes
            declared = [field for field in attrs.fields(attrs.resolve_types(cls)) if field.init]
            fields = {wire_name(each.name): (each, converter.get_structure_hook(each.type)) for each in declared}
        given: dict[str, Any] = {}
        found: list[tuple[Keys, str]] = []
        for name, (field, read) in fields.items():
            if name in data:
                try:
                    given[field.alias] = read(data[name], field.type)
                except ValueError as error:
                    found += mistakes(error, (name,))
            elif field.default is attrs.NOTHING:
                found.append(((name,), "required field missing"))
        if len(data) > len(given) and (unknown := data.keys() - fields.keys()):
            found += _limit_mistakes(_unknown(unknown, list(fields)))
        try:
            if not found:
                return cls(**given)
        except ValueError as error:  # of the class itself
            found += mistakes(error)
        raise Several(found)

    return hook


def _unknown(keys: Iterable[str], known: Sequence[str]) -> Iterator[tuple[Keys, str]]:
    for key in sorted(keys):
        yield (key,), f"unknown field{suggest_name(key, known)}"


CONVERTER = strict_converter()
