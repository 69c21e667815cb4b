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
ASIDE = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "nullable"}
    | {"$schema", "$id", "$comment", "$defs", "definitions", "propertyOrdering"}
)
BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}
OF_TYPE: Mapping[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": frozenset({*BOUNDS, "format"}),
    "number": frozenset({*BOUNDS, "format"}),
    "string": frozenset({"minLength", "maxLength"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
DEEPEST = 32  # nesting of schemas: a recursive one has no end
LARGEST = 1e15  # limit of numeric bounds; beyond it a float can't hold the difference of 1
MOST = 100_000  # characters, about: a caller's schema must not keep the kernel busy


class TooHard(ValueError):
    """The schema uses unsupported keywords, or no value can satisfy it."""

    def __init__(self, at: str, what: str) -> None:
        super().__init__(f"{at}: {what}" if at else what)


def smallest(schema: Mapping[str, Any], text: str = "") -> Any:
    """A value that ``schema`` allows; raises :class:`TooHard`.

    A string in it is ``text`` if the schema allows its length.
    """
    return _Builder(schema, text).value(schema, "", 0)


@define
class _Builder:
    root: Mapping[str, Any]
    text: str
    spent: int = 0  # characters

    def value(self, schema: Any, at: str, depth: int) -> Any:
        """Build a value; ``at`` is its path from the root, for error messages."""
        self._spend(1, at)
        if depth > DEEPEST:
            raise TooHard(at, f"nested deeper than {DEEPEST}")
        if schema is True:
            return {}
        if not isinstance(schema, Mapping):
            raise TooHard(at, "expected a schema")
        for word, build in WORDS.items():
            if word in schema:
                _only({word, "type"}, schema, at)
                return build(self, schema[word], at, depth)
        return self._typed(schema, at, depth)

    def given(self, value: Any, at: str, depth: int) -> Any:
        self._spend(len(json.dumps(value)), at)
        return value

    def first_of(self, values: Any, at: str, depth: int) -> Any:
        if not isinstance(values, list) or not values:
            raise TooHard(at, "enum has no value")
        return self.given(values[0], at, depth)

    def any_of(self, schemas: Any, at: str, depth: int) -> Any:
        why = TooHard(at, "anyOf has no alternative")
        for schema in schemas if isinstance(schemas, list) else ():
            try:
                return self.value(schema, at, depth + 1)
            except TooHard as error:
                if self.spent > MOST:
                    raise
                why = error
        raise why

    def referred(self, reference: Any, at: str, depth: int) -> Any:
        found: Any = self.root
        place, *keys = str(reference).split("/")
        for key in keys:
            found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        if place != "#" or found is None:
            raise TooHard(at, "its $ref leads nowhere within the schema")
        return self.value(found, at, depth + 1)

    def _typed(self, schema: Mapping[str, Any], at: str, depth: int) -> Any:
        kind = schema.get("type", "object")
        if isinstance(kind, list) and kind:
            kind = kind[0]
        if not isinstance(kind, str) or kind not in OF_TYPE:
            raise TooHard(at, "its type is none of " + ", ".join(OF_TYPE))
        _only({"type", *OF_TYPE[kind]}, schema, at)
        match kind:
            case "object":
                return self._object(schema, at, depth)
            case "array":
                items, count = schema.get("items", True), _whole(schema, "minItems", at, 0)
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
            raise TooHard(at, "properties is an object, and required an array")
        made = {}
        for name in map(str, required):
            self._spend(len(name), at)
            made[name] = self.value(properties.get(name, others), f"{at}.{name}" if at else name, depth + 1)
        return made

    def _string(self, schema: Mapping[str, Any], at: str) -> str:
        least, most = _whole(schema, "minLength", at, 0), _whole(schema, "maxLength", at, MOST)
        self._spend(max(least, len(self.text)), at)
        return self.text if least <= len(self.text) <= most else "x" * least

    def _spend(self, characters: int, at: str) -> None:
        self.spent += characters
        if self.spent > MOST:
            raise TooHard(at, f"larger than {MOST} characters")


# Each of these keywords defines the whole value, so no other keyword is needed.
WORDS: Mapping[str, Callable[[_Builder, Any, str, int], Any]] = {
    "const": _Builder.given,
    "enum": _Builder.first_of,
    "$ref": _Builder.referred,
    "anyOf": _Builder.any_of,
}


def _only(understood: Collection[str], schema: Mapping[str, Any], at: str) -> None:
    for word in schema:
        if word not in understood and word not in ASIDE:
            raise TooHard(at, f"{word} is more than is understood here")


def _whole(schema: Mapping[str, Any], word: str, at: str, default: int) -> int:
    value = schema.get(word, default)
    if type(value) is not int or value < 0:
        raise TooHard(at, f"{word} is a whole number")
    return value


def _number(schema: Mapping[str, Any], at: str, rounded: Callable[[float], float]) -> float:
    bounds = {word: schema[word] for word in BOUNDS if word in schema}
    if not all(type(bound) in (int, float) and abs(bound) < LARGEST for bound in bounds.values()):
        raise TooHard(at, f"{' and '.join(bounds)}: expected numbers below {LARGEST:g}")
    ends = [*bounds.values()]
    middle = sum(ends) / len(ends) if ends else 0
    for value in (0, *(rounded(end + step) for end in ends for step in (0, 1, -1)), middle):
        if rounded(value) == value and all(BOUNDS[word](value, bound) for word, bound in bounds.items()):
            return value
    raise TooHard(at, "no number was found between its bounds")
