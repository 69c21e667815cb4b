"""Errors of MCP servers: what ends a server, and how what a server says is quoted."""

from agentos.permissions.approvals.page import escape

MAX_QUOTED_CHARS = 300


class BadServer(Exception):
    """A server broke the protocol or a limit, and is ended; the text says what it did."""


def quote_server(text: str) -> str:
    """A server's own words in an error: on one line, without invisible characters, and not long."""
    shown = escape(text[:MAX_QUOTED_CHARS])
    return shown if len(text) <= MAX_QUOTED_CHARS else f"{shown}…"
