"""Transports between an MCP client of the tests and a server of ours, and the eras of the protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Protocol

import trio
from attrs import asdict, frozen

from agentos.userland.mcp.transports.session import open_session
from agentos_sdk import connect
from tests.support.clients import mcp
from tests.support.kernel import Kernel
from tests.support.runs.forked import Commands
from tests.support.wire import PATIENCE
from tests.userland.mcp.transports.http_serving import Http

ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}  # by mode of the SDK's client
STATE_KEY = bytes(range(32))


@frozen
class TestEntry:
    """What the operator has set for a client; see :class:`agentos.userland.mcp.transports.session.Entry`."""

    __test__ = False

    name: str
    level: str | None = "standard"
    permissions: Mapping[str, Any] | None = None
    elicitation: str = "off"
    transport: str = "stdio"

    @property
    def guest(self) -> str:
        return f"mcp:{self.name}"


class Transport(Protocol):
    """A way to an MCP server of a kernel, which lives as long as the context manager. ``kind`` is its entries'."""

    kind: Literal["stdio", "http"]

    def serve(
        self, kernel: Kernel, entry: TestEntry, approval_timeout: float = 0
    ) -> AbstractAsyncContextManager[Any]: ...


class Memory:
    """Client and server in one process."""

    kind: Literal["stdio", "http"] = "stdio"

    @asynccontextmanager
    async def serve(self, kernel: Kernel, entry: TestEntry, approval_timeout: float = 0) -> AsyncIterator[Any]:
        from agentos.userland.mcp.server import build_server

        async with open_session(entry, kernel.socket, approval_timeout=approval_timeout) as session:
            yield build_server(lambda: session, STATE_KEY)


class Stdio:
    """The server is a process that the client starts, forked from one that has imported the SDK."""

    kind: Literal["stdio", "http"] = "stdio"

    @asynccontextmanager
    async def serve(self, kernel: Kernel, entry: TestEntry, approval_timeout: float = 0) -> AsyncIterator[Any]:
        settings = json.dumps({"entry": asdict(entry), "socket": kernel.socket, "approval_timeout": approval_timeout})
        with TemporaryDirectory() as place, closing(Commands(Path(place))) as commands:
            yield mcp.StdioServerParameters(
                command=str(commands.directory / "agentos"),
                args=["-c", "from tests.userland.mcp.stdio_server import main; main()", settings],
                cwd=Path(__file__).parents[3],
            )


TRANSPORTS: Mapping[str, Transport] = {"memory": Memory(), "stdio": Stdio(), "http": Http()}


class Person:
    """Answers elicitations as told, and keeps what was asked."""

    def __init__(self, action: str = "accept", allow: bool = True) -> None:
        self.questions: list[str] = []
        self._answer = {"action": action, "content": {"allow": allow} if action == "accept" else None}

    async def __call__(self, context: object, params: mcp.types.ElicitRequestParams) -> mcp.types.ElicitResult:
        self.questions.append(params.message)
        return mcp.types.ElicitResult.model_validate(self._answer)


@frozen
class Cell:
    """One cell of the table of eras: a transport, and the era that the client speaks."""

    transport: Transport
    mode: str
    kernel: Kernel

    @property
    def is_modern(self) -> bool:
        return self.mode != "legacy"

    @asynccontextmanager
    async def connect(self, entry: TestEntry, approval_timeout: float = 0, **options: Any) -> AsyncIterator[mcp.Client]:
        """A client with a server of its own."""
        with trio.fail_after(PATIENCE):
            async with (
                self.transport.serve(self.kernel, entry, approval_timeout) as place,
                mcp.Client(place, mode=self.mode, **options) as client,
            ):
                assert client.protocol_version == ERAS[self.mode]
                yield client

    def operator(self) -> AbstractAsyncContextManager[Any]:
        return connect(self.kernel.socket)


async def eventually(condition: Callable[[], object]) -> None:
    """Return when ``condition()`` is true; the caller sets the deadline."""
    while not condition():
        await trio.sleep(0.01)


def error_of(result: mcp.types.CallToolResult) -> str:
    """The text of a failed tool."""
    assert result.is_error, result
    [content] = result.content
    text: str = content.text  # type: ignore[union-attr]
    return text


def value_of(result: mcp.types.CallToolResult) -> dict[str, Any]:
    """The structured result of a tool that succeeded."""
    assert not result.is_error, result
    found: dict[str, Any] | None = result.structured_content
    assert found is not None
    return found
