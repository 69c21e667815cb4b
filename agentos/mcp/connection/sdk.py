"""The SDK of MCP, which is imported when a server is first used: it takes 0.4 s and 57 MiB."""

import logging
from importlib import import_module
from importlib.util import find_spec

from agentos_sdk.errors import Unavailable

MISSING = "MCP servers need the package mcp: pip install '.[mcp]' in AgentOS's repository, and start the kernel again"


def is_installed() -> bool:
    """Whether the SDK is there; it isn't imported for that."""
    return find_spec("mcp") is not None


def load_sdk() -> None:
    """Import the SDK; raises ``Unavailable`` if it isn't installed. Blocks."""
    try:
        import_module("agentos.mcp.connection.client")
        # A server decides how often it logs, and what.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio", "pydantic"):
            raise
        raise Unavailable(MISSING) from None
