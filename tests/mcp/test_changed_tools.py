"""Changes of tools that a server announces by a subscription, as of 2026-07-28."""

import trio

from tests.support.clients import mcp, mcp_client, mcpserver
from tests.support.wire import PATIENCE


async def test_tools_that_a_server_says_have_changed_are_no_longer_fresh() -> None:
    server = mcpserver.MCPServer("shop", version="1.0")

    @server.tool()
    async def change(context: mcpserver.Context) -> str:
        await context.notify_tools_changed()
        return "changed"

    with trio.fail_after(PATIENCE):
        async with mcp.Client(server) as client, trio.open_nursery() as nursery:
            connected = mcp_client.Connected(client, "shop")
            nursery.start_soon(connected.watch_tools)
            await connected.list_tools()
            assert connected.fresh
            while connected.fresh:
                await connected.call_tool("change", {})
            nursery.cancel_scope.cancel()
