"""The smallest value for a schema: it is valid, and a schema that is too hard is refused by its place, soon."""

from collections.abc import Callable
from typing import Any

import pytest

from agentos.llm.answers.schema_example import MAX_CHARACTERS, UnsupportedSchema, smallest_value
from tests.support.runs.rows import each_row


@each_row(
    ("schema", "value"),
    [
        ({}, {}),
        ({"type": "object"}, {}),
        ({"type": "null"}, None),
        ({"type": "boolean"}, False),
        ({"type": "integer"}, 0),
        ({"type": ["string", "null"]}, "text"),
        ({"type": "string", "maxLength": 2}, ""),
        ({"type": "string", "minLength": 5}, "xxxxx"),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
        ({"enum": ["red", "green"], "type": "string"}, "red"),
        ({"const": [1]}, [1]),
        ({"anyOf": [{"type": "string", "pattern": "x"}, {"type": "null"}]}, None),
        ({"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"], "title": "Both"}, {"a": 0}),
        ({"type": "object", "required": ["z"], "additionalProperties": {"type": "null"}}, {"z": None}),
        (
            {
                "$defs": {"leaf/1": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
                "properties": {"leaf": {"$ref": "#/$defs/leaf~11"}},
                "required": ["leaf"],
            },
            {"leaf": {"n": 0}},
        ),
    ],
)
def test_a_simple_schema_has_a_smallest_value(schema: dict[str, Any], value: object) -> None:
    assert smallest_value(schema, "text") == value


@each_row(
    ("bounds", "whole", "value"),
    [
        ({"minimum": -5, "maximum": 5}, 0, 0),
        ({"minimum": 3}, 3, 3),
        ({"minimum": 2.5}, 3, 2.5),
        ({"maximum": -2.5}, -3, -2.5),
        ({"exclusiveMinimum": 3}, 4, 4),
        ({"exclusiveMaximum": 0}, -1, -1),
        ({"exclusiveMaximum": -0.5}, -1, -1.5),
        ({"exclusiveMinimum": 3, "exclusiveMaximum": 4}, None, 3.5),
        ({"exclusiveMinimum": 3, "maximum": 4, "format": "int32"}, 4, 4),
        ({"minimum": 4, "maximum": 3}, None, None),
        ({"minimum": 10**400}, None, None),
        ({"minimum": "3"}, None, None),
    ],
)
def test_a_number_is_within_its_bounds(bounds: dict[str, Any], whole: int | None, value: float | None) -> None:
    for kind, expected in (("integer", whole), ("number", value)):
        if expected is None:
            with pytest.raises(UnsupportedSchema):
                smallest_value({"type": kind, **bounds})
        else:
            assert smallest_value({"type": kind, **bounds}) == expected


SELF: dict[str, Any] = {"properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@each_row(
    ("schema", "why"),
    [
        ({"type": "string", "format": "date"}, "^format is not supported"),
        ({"type": "object", "minProperties": 1}, "^minProperties is not supported"),
        (
            {"properties": {"a": {"type": "array", "minItems": 1, "items": {"oneOf": []}}}, "required": ["a"]},
            r"^a\[0\]: oneOf",
        ),
        ({"type": "object", "required": ["z"], "additionalProperties": False}, "^z: expected a schema"),
        ({"type": "text"}, "its type is none of null, boolean"),
        ({"type": {"a": 1}}, "its type is none of"),
        ({"type": "array", "minItems": True}, "minItems is a whole number"),
        ({"type": "array", "items": [], "minItems": 1}, "expected a schema"),
        ({"enum": []}, "enum has no value"),
        ({"enum": "abc"}, "enum has no value"),
        ({"anyOf": []}, "anyOf has no alternative"),
        ({"anyOf": 5}, "anyOf has no alternative"),
        ({"const": 1, "minimum": 0}, "minimum is not supported"),
        ({"$ref": "http://example.org/schema"}, "leads nowhere"),
        ({"$ref": "#/$defs/missing"}, "leads nowhere"),
        ({"properties": [], "required": ["a"]}, "properties is an object"),
        ({"required": "a"}, "required an array"),
        (SELF, "nested deeper than 32"),
    ],
)
def test_a_schema_that_is_too_hard_is_refused(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedSchema, match=why):
        smallest_value(schema)


@each_row(
    "wrap",
    [
        lambda one: {"properties": {"a": one}, "required": ["a"]},
        lambda one: {"type": "array", "items": one, "minItems": 1},
        lambda one: {"anyOf": [one]},
    ],
)
def test_schemas_within_each_other_are_32_at_most(wrap: Callable[[object], dict[str, Any]]) -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(32):
        schema = wrap(schema)

    smallest_value(schema)
    with pytest.raises(UnsupportedSchema, match="nested deeper than 32"):
        smallest_value(wrap(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 10**15},
        {"type": "string", "minLength": 10**15},
        {"const": "x" * MAX_CHARACTERS},
        {"$defs": {"a": {"const": "x" * 1000}}, "type": "array", "minItems": 1000, "items": {"$ref": "#/$defs/a"}},
        {"anyOf": [{"$ref": "#"}] * 3},  # 3 to the power of 32
        {"type": "array", "minItems": 3, "items": {"$ref": "#"}},
    ],
)
def test_a_schema_that_would_need_a_lot_is_refused_before_it_gets_it(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchema, match=r"larger than 100000 characters|nested deeper"):
        smallest_value(schema)
