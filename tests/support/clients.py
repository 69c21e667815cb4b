"""Python clients of vendors and of MCP, imported where a test first uses one: the import takes seconds of CPU.

Collecting the tests imports every test module in every worker; few of these run a test of a client.
"""

import importlib
from typing import TYPE_CHECKING, Any


class LazyModule:
    """A module that is imported when one of its public names is first used; pytest asks for names that begin with _."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import anthropic
    import httpx2
    import mcp
    import openai
    from google import genai
    from google.genai import types as genai_types
    from mcp.server import mcpserver
    from openai.types import chat, responses

    from agentos.llm.providers import http_client, transport
    from agentos.mcp import validation
    from agentos.mcp.connection import client as mcp_client
else:
    anthropic = LazyModule("anthropic")
    genai = LazyModule("google.genai")
    genai_types = LazyModule("google.genai.types")
    httpx2 = LazyModule("httpx2")
    mcp = LazyModule("mcp")
    mcpserver = LazyModule("mcp.server.mcpserver")
    openai = LazyModule("openai")
    chat = LazyModule("openai.types.chat")
    responses = LazyModule("openai.types.responses")
    # These import them.
    http_client = LazyModule("agentos.llm.providers.http_client")
    mcp_client = LazyModule("agentos.mcp.connection.client")
    transport = LazyModule("agentos.llm.providers.transport")
    validation = LazyModule("agentos.mcp.validation")

__all__ = [
    "anthropic",
    "chat",
    "genai",
    "genai_types",
    "http_client",
    "httpx2",
    "mcp",
    "mcp_client",
    "mcpserver",
    "openai",
    "responses",
    "transport",
    "validation",
]
