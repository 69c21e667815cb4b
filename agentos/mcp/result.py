"""The result of a tool of an MCP server."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct


class CallResult(Struct, frozen=True):
    """``content`` has text, images, audio and resources as the protocol writes them; ``truncated``: not all of it."""

    content: Sequence[Mapping[str, Any]]
    structured: object | None = None
    is_error: bool = False
    truncated: bool = False
