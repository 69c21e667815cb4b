"""The arguments of a tool as a pydantic class, which is how CrewAI wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, create_model

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict[str, Any], "array": list[Any]}


def arguments_model(name: str, schema: Mapping[str, Any]) -> type[BaseModel]:
    """A class with a field for each property of a JSON schema; one that isn't required may be left out."""
    required = schema.get("required", ())
    fields: dict[str, Any] = {}
    for key, described in schema.get("properties", {}).items():
        kind, text = TYPES.get(described.get("type"), Any), described.get("description", "")
        is_required = key in required
        fields[key] = (kind, Field(description=text)) if is_required else (kind | None, Field(None, description=text))
    return create_model(f"{name}_arguments", **fields)
