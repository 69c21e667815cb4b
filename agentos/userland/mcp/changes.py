"""Tells an MCP client that agents have come, gone or changed, in the way of the era that it speaks."""

from collections.abc import Callable
from typing import Any

import anyio
from attrs import define, field
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourcesListChanged, ResourceUpdated

from .performing import request_errors
from .transports.session import EVERYTHING, Session

MAX_LEGACY_CONNECTIONS = 64  # the oldest is told nothing any more
AGENTS, TREE = "agentos://agents", "agentos://tree"
LIST_CHANGES = ("AGENT_SPAWNED", "AGENT_EXITED", "AGENT_FAILED", EVERYTHING)


@define(eq=False)
class Changes:
    """The listeners of one server: those of 2026-07-28 on ``bus``, and the connections of earlier versions."""

    find_session: Callable[[], Session]
    bus: InMemorySubscriptionBus = field(factory=InMemorySubscriptionBus)
    _legacy: list[ServerSession] = field(factory=list)

    async def note_client(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """A middleware: agents are watched from the first request on by which a client wants to hear of changes."""
        if ctx.method == "notifications/initialized":
            self._legacy.append(ctx.session)
            del self._legacy[:-MAX_LEGACY_CONNECTIONS]
        if ctx.method in ("notifications/initialized", "subscriptions/listen"):
            async with request_errors():
                await self.find_session().watch(self.announce)
        result = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(result, dict):
            result["capabilities"]["resources"]["listChanged"] = True  # the SDK can't be told for this era
        return result

    async def announce(self, kind: str) -> None:
        """Tell the clients of an event about agents; ``kind`` is its type."""
        if kind in LIST_CHANGES:
            await self.bus.publish(ResourcesListChanged())
            for connection in list(self._legacy):
                try:
                    await connection.send_resource_list_changed()
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self._legacy.remove(connection)
        for uri in (AGENTS, TREE):
            await self.bus.publish(ResourceUpdated(uri=uri))
