"""Fields of Google's JSON, and its schemas. No I/O.

Names are camelCase. As in protobuf's JSON, snake_case is accepted too, base64 may be the one for URLs and lack its
padding, and one object may stand for an array of it.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from agentos.gateways.request_fields import Fields

LISTS = ("anyOf", "prefixItems")  # keywords of a schema whose value is an array of schemas
INNER = ("items", "additionalProperties")  # whose value is a schema
NAMED = ("properties", "$defs")  # whose values are schemas by name
NUMBERS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")  # may come as text
OWN = ("nullable", "propertyOrdering", "example")  # that JSON schemas don't have


@frozen
class GoogleFields(Fields):
    def given(self, name: str) -> Any:
        found = self.data.get(name)
        return self.data.get(snake_case(name)) if found is None else found

    def array(self, name: str) -> Sequence[Any]:
        found = self.given(name)
        return [found] if type(found) is dict else super().array(name)

    @property
    def names(self) -> Sequence[str]:
        """The fields that aren't null, in camelCase."""
        return [camel_case(name) for name, value in self.data.items() if value is not None]


def camel_case(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


def snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name)


def plain_base64(data: str) -> str:
    """Base64 in the usual alphabet, with padding."""
    return data.replace("-", "+").replace("_", "/") + "=" * (-len(data) % 4)


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of Google's, the one of OpenAPI 3.0, as JSON schema."""
    found: dict[str, Any] = {}
    for given, value in schema.items():
        name = {"defs": "$defs", "ref": "$ref"}.get(given, camel_case(given))
        if name not in OWN and value is not None:
            found[name] = _convert(name, value)
    if schema.get("nullable") is True:
        _allow_null(found)
    return found


def _convert(name: str, value: Any) -> Any:
    if name == "$ref" and isinstance(value, str):
        return re.sub("^#/defs/", "#/$defs/", value)
    if name == "type" and isinstance(value, str):
        return value.lower()
    if name in NUMBERS and isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    if name in INNER and isinstance(value, Mapping):
        return json_schema(value)
    if name in NAMED and isinstance(value, Mapping):
        return {each: json_schema(inner) if isinstance(inner, Mapping) else inner for each, inner in value.items()}
    if name in LISTS and isinstance(value, list):
        return [json_schema(inner) if isinstance(inner, Mapping) else inner for inner in value]
    return value


def _allow_null(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]


def encode_signature(signature: str) -> str:
    """A call's signature as ``thoughtSignature``, which is bytes: Gemini's own is base64, that of others is JSON."""
    if _is_json(signature):
        return base64.b64encode(signature.encode()).decode()
    return signature


def decode_signature(given: str) -> str:
    """Undo :func:`encode_signature`, for signatures in either alphabet."""
    encoded = plain_base64(given)
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        return encoded
    return text if _is_json(text) else encoded


def _is_json(signature: str) -> bool:
    return signature.startswith(("[{", '{"message":', '{"call":'))
