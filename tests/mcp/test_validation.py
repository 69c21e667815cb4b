"""Which tools of a page are left out, and why; and what becomes of replies that are none."""

from typing import Any

import pytest

from agentos.mcp.connection.messages import UNREADABLE, Parsed
from tests.support.clients import validation

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
GOOD = {"name": "t", "inputSchema": SCHEMA}


def page(*tools: object, **more: Any) -> Parsed:
    return Parsed({"jsonrpc": "2.0", "id": 1, "result": {"tools": [*tools], **more}})


BAD: dict[str, tuple[object, str]] = {
    "a schema that is text": ({"name": "bad", "inputSchema": "no"}, "inputSchema"),
    "no schema": ({"name": "bad"}, "inputSchema"),
    "a list": ({"name": "bad", "inputSchema": {"type": "array"}}, "expected object"),
    "a property that is text": ({"name": "bad", "inputSchema": {"properties": {"a": "string"}}}, "properties.a"),
    "properties in a list": ({"name": "bad", "inputSchema": {"properties": [SCHEMA]}}, "properties: expected"),
    "one name required": ({"name": "bad", "inputSchema": {**SCHEMA, "required": "a"}}, "required"),
    "deeper": (
        {"name": "bad", "inputSchema": {"properties": {"a": {"items": {"anyOf": {}}}}}},
        "properties.a.items.anyOf",
    ),
    "a description": ({**GOOD, "name": "bad", "description": 5}, "description"),
    "annotations": ({**GOOD, "name": "bad", "annotations": "none"}, "annotations"),
}


@pytest.mark.parametrize(("tool", "why"), BAD.values(), ids=BAD.keys())
def test_one_bad_tool_is_left_out_and_named(tool: object, why: str) -> None:
    found = validation.validate(page(GOOD, tool, {**GOOD, "name": "u"}, nextCursor="x"))

    assert found is not None
    result = found[0].message["result"]
    assert [one["name"] for one in result["tools"]] == ["t", "u"]
    assert list(result["_meta"][validation.REFUSED]) == ["bad"]
    assert why in result["_meta"][validation.REFUSED]["bad"]
    assert result["nextCursor"] == "x"


@pytest.mark.parametrize("tool", [None, 5, "t", [], {}, {"name": 5, "inputSchema": {}}])
def test_what_has_no_name_is_named_by_its_number(tool: object) -> None:
    found = validation.validate(page(GOOD, tool))

    assert found is not None
    assert list(found[0].message["result"]["_meta"][validation.REFUSED]) == ["(number 2)"]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        SCHEMA,
        {"type": "object", "properties": {"a": True, "b": {"type": ["string", "null"], "enum": ["x", None]}}},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"anyOf": [SCHEMA]}}, "required": ["a"]},
        {"type": "object", "additionalProperties": False, "x-own": "anything"},
    ],
)
def test_a_schema_that_models_take_is_kept(schema: dict[str, Any]) -> None:
    assert validation.find_fault({"name": "t", "inputSchema": schema}) is None


def test_a_schema_is_looked_at_as_deep_as_the_limit() -> None:
    schema: object = "no schema"
    for _ in range(validation.MAX_SCHEMA_DEPTH):
        schema = {"not": schema}

    fault = validation.find_schema_fault(schema)

    assert fault is not None
    assert fault.endswith("not.expected a schema, an object")
    assert validation.find_schema_fault({"not": schema}) is None


@pytest.mark.parametrize("rest", [{"result": "text"}, {"error": "no"}, {"error": {"message": "no code"}}])
def test_a_reply_that_is_none_fails_its_request(rest: dict[str, Any]) -> None:
    found = validation.validate(Parsed({"jsonrpc": "2.0", "id": "a", **rest}))

    assert found is not None
    assert found[1].id == "a"
    assert found[1].error.code == UNREADABLE


def test_another_message_that_is_none_is_told_apart() -> None:
    assert validation.validate(Parsed({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": 5})) is None
