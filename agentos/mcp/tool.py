"""Tool: one tool of an MCP server as the server describes it, and the digest that a decision about it is bound to."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

FIELDS: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""The fields of a tool in the protocol that an agent sees. Others are dropped: nothing unpinned reaches an agent."""


class Tool(Struct, frozen=True):
    """``definition`` is the JSON of :data:`FIELDS`, in ASCII with sorted keys; ``digest`` its SHA-256 in hexadecimal.

    ``name`` is the server's own name of the tool, without the server's in front.
    """

    name: str
    definition: str
    digest: str

    @property
    def fields(self) -> dict[str, Any]:
        """The definition, decoded. Takes time: a schema may be large."""
        found: dict[str, Any] = json.loads(self.definition)
        return found


def make_tool(given: Mapping[str, Any]) -> Tool:
    """The tool that an object of a reply to ``tools/list`` describes. Blocks for a large schema.

    Raises ``KeyError`` without a name, ``RecursionError`` for a schema that is nested too deeply.
    """
    kept = {name: given[name] for name in FIELDS if given.get(name) is not None}
    definition = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return Tool(str(kept["name"]), definition, hashlib.sha256(definition.encode()).hexdigest())
