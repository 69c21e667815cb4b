"""A program that serves MCP over stdio for an entry of a test."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import trio

from agentos.userland.mcp.server import build_server
from agentos.userland.mcp.transports.session import open_session
from tests.userland.mcp.serving import STATE_KEY, TestEntry


def main() -> None:
    trio.run(serve, json.loads(sys.argv[1]))


async def serve(settings: Mapping[str, Any]) -> None:
    entry = TestEntry(**settings["entry"])
    async with open_session(entry, settings["socket"], approval_timeout=settings["approval_timeout"]) as session:
        await build_server(lambda: session, STATE_KEY).run_stdio_async()
