"""Checks a tool call's arguments against the tool's JSON schema: what is wrong, and what is expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def mistakes(arguments: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the arguments, each with the argument's name; nothing if they fit.

    Looks at types, required and unknown arguments and allowed values, not at all that a JSON schema can say.
    """
    if isinstance(arguments, str):
        yield f"arguments: expected a JSON object, got text that is none: {show(arguments)}"
        return
    if not isinstance(arguments, dict):
        yield f"arguments: expected an object, got {show(arguments)}"
        return
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in arguments:
            yield f"{name}: required argument missing"
    for name, value in arguments.items():
        if name not in properties:
            if schema.get("additionalProperties", False) is False:
                yield f"{name}: no such argument; there are {', '.join(properties) or 'none'}"
            continue
        yield from _wrong_value(name, value, properties[name])


def _wrong_value(name: str, value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    if "anyOf" in schema:
        if all(list(_wrong_value(name, value, each)) for each in schema["anyOf"]):
            expected = " or ".join(str(each.get("type", "another")) for each in schema["anyOf"])
            yield f"{name}: expected {expected}, got {show(value)}"
        return
    kind = str(schema.get("type"))
    if kind in KINDS and (
        not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))
    ):
        yield f"{name}: expected {kind}, got {show(value)}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{name}: expected one of {', '.join(map(show, schema['enum']))}, got {show(value)}"
    elif kind == "array" and "items" in schema:
        for place, item in enumerate(value):
            yield from _wrong_value(f"{name}[{place}]", item, schema["items"])


def show(value: Any) -> str:
    """A value in an error message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
