"""The smallest JSON value that a simple JSON schema allows.

Supported are the keywords that say how a value is built: types, required properties, items, limits of lengths and
numbers, enumerations, alternatives, and references within the schema. Keywords that would require a search, such as a
pattern for a string, are refused.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from attrs import define

# Keywords that don't affect how a value is built.
IGNORED_KEYWORDS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "nullable"}
    | {"$schema", "$id", "$comment", "$defs", "definitions", "propertyOrdering"}
)
BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}
TYPE_KEYWORDS: Mapping[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": frozenset({*BOUNDS, "format"}),
    "number": frozenset({*BOUNDS, "format"}),
    "string": frozenset({"minLength", "maxLength"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
MAX_DEPTH = 32  # nesting of schemas: a recursive one has no end
MAX_BOUND = 1e15  # limit of numeric bounds; beyond it a float can't hold the difference of 1
MAX_CHARACTERS = 100_000  # characters, about: a caller's schema must not keep the kernel busy


class UnsupportedSchema(ValueError):
    """The schema uses unsupported keywords, or no value can satisfy it."""

    def __init__(self, at: str, what: str) -> None:
        super().__init__(f"{at}: {what}" if at else what)


def smallest_value(schema: Mapping[str, Any], text: str = "") -> Any:
    """A value that ``schema`` allows; raises :class:`UnsupportedSchema`.

    A string in it is ``text`` if the schema allows its length.
    """
    return _Builder(schema, text).value(schema, "", 0)


@define
class _Builder:
    root: Mapping[str, Any]
    text: str
    characters: int = 0  # of the value so far

    def value(self, schema: Any, at: str, depth: int) -> Any:
        """Build a value; ``at`` is its path from the root, for error messages."""
        self._count(1, at)
        if depth > MAX_DEPTH:
            raise UnsupportedSchema(at, f"nested deeper than {MAX_DEPTH}")
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise UnsupportedSchema(at, "expected a schema")
        for word, build in WHOLE_VALUE_KEYWORDS.items():
            if word in schema:
                _check_keywords({word, "type"}, schema, at)
                return build(self, schema[word], at, depth)
        return self._of_type(schema, at, depth)

    def constant(self, value: Any, at: str, depth: int) -> Any:
        self._count(len(json.dumps(value)), at)
        return value

    def enum(self, values: Any, at: str, depth: int) -> Any:
        if not isinstance(values, list) or not values:
            raise UnsupportedSchema(at, "enum has no value")
        return self.constant(values[0], at, depth)

    def any_of(self, schemas: Any, at: str, depth: int) -> Any:
        why = UnsupportedSchema(at, "anyOf has no alternative")
        for schema in schemas if isinstance(schemas, list) else ():
            try:
                return self.value(schema, at, depth + 1)
            except UnsupportedSchema as error:
                if self.characters > MAX_CHARACTERS:
                    raise
                why = error
        raise why

    def reference(self, pointer: Any, at: str, depth: int) -> Any:
        found: Any = self.root
        place, *keys = str(pointer).split("/")
        for key in keys:
            found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        if place != "#" or found is None:
            raise UnsupportedSchema(at, "its $ref leads nowhere within the schema")
        return self.value(found, at, depth + 1)

    def _of_type(self, schema: Mapping[str, Any], at: str, depth: int) -> Any:
        kind = schema.get("type", "object")
        if isinstance(kind, list) and kind:
            kind = kind[0]
        if not isinstance(kind, str) or kind not in TYPE_KEYWORDS:
            raise UnsupportedSchema(at, "its type is none of " + ", ".join(TYPE_KEYWORDS))
        _check_keywords({"type", *TYPE_KEYWORDS[kind]}, schema, at)
        match kind:
            case "object":
                return self._object(schema, at, depth)
            case "array":
                items, count = schema.get("items", True), _whole_number(schema, "minItems", at, 0)
                return [self.value(items, f"{at}[{n}]", depth + 1) for n in range(count)]
            case "string":
                return self._string(schema, at)
            case "integer" | "number":
                return _number(schema, at, math.ceil if kind == "integer" else float)
        return False if kind == "boolean" else None

    def _object(self, schema: Mapping[str, Any], at: str, depth: int) -> dict[str, Any]:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise UnsupportedSchema(at, "properties is an object, and required an array")
        made = {}
        for name in map(str, required):
            self._count(len(name), at)
            made[name] = self.value(properties.get(name, others), f"{at}.{name}" if at else name, depth + 1)
        return made

    def _string(self, schema: Mapping[str, Any], at: str) -> str:
        least, most = _whole_number(schema, "minLength", at, 0), _whole_number(schema, "maxLength", at, MAX_CHARACTERS)
        self._count(max(least, len(self.text)), at)
        return self.text if least <= len(self.text) <= most else "x" * least

    def _count(self, characters: int, at: str) -> None:
        self.characters += characters
        if self.characters > MAX_CHARACTERS:
            raise UnsupportedSchema(at, f"larger than {MAX_CHARACTERS} characters")


# Each of these keywords defines the whole value, so no other keyword is needed.
WHOLE_VALUE_KEYWORDS: Mapping[str, Callable[[_Builder, Any, str, int], Any]] = {
    "const": _Builder.constant,
    "enum": _Builder.enum,
    "$ref": _Builder.reference,
    "anyOf": _Builder.any_of,
}


def _check_keywords(supported: Collection[str], schema: Mapping[str, Any], at: str) -> None:
    for word in schema:
        if word not in supported and word not in IGNORED_KEYWORDS:
            raise UnsupportedSchema(at, f"{word} is not supported")


def _whole_number(schema: Mapping[str, Any], word: str, at: str, default: int) -> int:
    value = schema.get(word, default)
    if type(value) is not int or value < 0:
        raise UnsupportedSchema(at, f"{word} is a whole number")
    return value


def _number(schema: Mapping[str, Any], at: str, rounded: Callable[[float], float]) -> float:
    bounds = {word: schema[word] for word in BOUNDS if word in schema}
    if not all(type(bound) in (int, float) and abs(bound) < MAX_BOUND for bound in bounds.values()):
        raise UnsupportedSchema(at, f"{' and '.join(bounds)}: expected numbers below {MAX_BOUND:g}")
    ends = [*bounds.values()]
    middle = sum(ends) / len(ends) if ends else 0
    for value in (0, *(rounded(end + step) for end in ends for step in (0, 1, -1)), middle):
        if rounded(value) == value and all(BOUNDS[word](value, bound) for word, bound in bounds.items()):
            return value
    raise UnsupportedSchema(at, "no number was found between its bounds")
