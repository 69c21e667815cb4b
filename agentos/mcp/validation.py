"""Messages as the protocol's types, and the tools of a page that are none. Blocks: a schema may be large.

One tool that isn't described as the protocol says takes no other with it: it is left out, and named with the reason.
"""

from collections.abc import Mapping
from typing import Any, Final

import mcp_types
from msgspec.structs import replace
from pydantic import ValidationError

from .connection.messages import OWN_KEYS, Parsed, fail_message
from .errors import quote_server

REFUSED: Final = f"{OWN_KEYS}refused"  # a key of a page's _meta: why tools are left out, by name
MAX_SCHEMA_DEPTH: Final = 32  # levels of a schema that are looked at
LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")  # keywords whose value is a list of schemas
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")  # … an object of them
SCHEMAS: Final = ("items", "additionalProperties", "not")  # … a schema, or true or false


def validate(parsed: Parsed) -> tuple[Parsed, Any] | None:
    """A message as its type; an error in place of a reply that isn't one; None for another that isn't a message."""
    parsed = refuse_tools(parsed)
    try:
        return parsed, mcp_types.jsonrpc_message_adapter.validate_python(parsed.message, by_name=False)
    except ValueError:
        failed = fail_message(parsed.message, "it is no reply of JSON-RPC 2.0")
        if failed is None:
            return None
        return replace(parsed, message=failed), mcp_types.jsonrpc_message_adapter.validate_python(failed, by_name=False)


def refuse_tools(parsed: Parsed) -> Parsed:
    """The message without the tools that the protocol, or a model, would refuse."""
    result = parsed.message.get("result")
    if not isinstance(result, dict) or not isinstance(tools := result.get("tools"), list):
        return parsed
    kept, refused = [], dict[str, str]()
    for number, tool in enumerate(tools):
        if (fault := find_fault(tool)) is None:
            kept.append(tool)
        else:
            name = tool.get("name") if isinstance(tool, dict) else None
            refused[name if isinstance(name, str) and name else f"(number {number + 1})"] = fault
    if not refused:
        return parsed
    given = result.get("_meta")
    meta = {**(given if isinstance(given, dict) else {}), REFUSED: refused}
    return replace(parsed, message={**parsed.message, "result": {**result, "tools": kept, "_meta": meta}})


def find_fault(tool: object) -> str | None:
    """Why a tool can't be used as it is described; None if it can."""
    try:
        mcp_types.Tool.model_validate(tool, by_name=False)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the tool"
        return f"its description isn't MCP's: {quote_server(place + ': ' + first['msg'])}"
    except (ValueError, RecursionError):
        return "its description can't be read"
    assert isinstance(tool, dict), "it is valid"
    schema = tool["inputSchema"]
    fault = find_schema_fault(schema)
    if fault is None and schema.get("type", "object") != "object":
        fault = "type: expected object"
    return f"its inputSchema can't be used: {quote_server(fault)}" if fault is not None else None


def find_schema_fault(schema: object, depth: int = 0) -> str | None:
    """What in a JSON schema isn't one, with its place; None if nothing is found. Models refuse all tools for it."""
    if isinstance(schema, bool) or depth > MAX_SCHEMA_DEPTH:
        return None
    if not isinstance(schema, Mapping):
        return "expected a schema, an object"
    kind = schema.get("type")
    if kind is not None and not (isinstance(kind, str) or (isinstance(kind, list) and all(map(_is_text, kind)))):
        return "type: expected a name, or a list of them"
    required = schema.get("required")
    if required is not None and not (isinstance(required, list) and all(map(_is_text, required))):
        return "required: expected a list of names"
    if schema.get("enum") is not None and not isinstance(schema["enum"], list):
        return "enum: expected a list"
    for place, inner in _inner_schemas(schema):
        if inner is _WRONG:
            return f"{place}: expected schemas"
        if (fault := find_schema_fault(inner, depth + 1)) is not None:
            return f"{place}.{fault}"
    return None


_WRONG: Final = object()


def _inner_schemas(schema: Mapping[str, Any]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name in LISTS:
        if (inner := schema.get(name)) is not None:
            found += [(name, each) for each in inner] if isinstance(inner, list) else [(name, _WRONG)]
    for name in MAPS:
        if (inner := schema.get(name)) is not None:
            found += (
                [(f"{name}.{key}", each) for key, each in inner.items()]
                if isinstance(inner, dict)
                else [(name, _WRONG)]
            )
    for name in SCHEMAS:
        inner = schema.get(name)
        if isinstance(inner, list) and name == "items":  # of tuples, in older drafts
            found += [(name, each) for each in inner]
        elif inner is not None:
            found.append((name, inner))
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str)
