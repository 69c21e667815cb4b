"""A session: its connections, and the end of what the operator has revoked."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from agentos.userland.mcp.transports.session import Revoked, open_session
from agentos.userland.mcp.transports.state_key import load_state_key
from agentos_sdk.errors import BadRequest, ConnectionFailed, Unavailable
from tests.conftest import OwnKernel
from tests.support.clients import mcp
from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.userland.mcp.serving import TestEntry, error_of, value_of


async def test_a_session_goes_on_with_the_next_kernel(own_kernel: OwnKernel) -> None:
    from mcp.shared.subscriptions import ResourcesListChanged

    from agentos.userland.mcp.server import build_server

    kernel = own_kernel()
    with trio.fail_after(PATIENCE):
        async with open_session(TestEntry("lasting"), kernel.socket) as session:
            server = build_server(lambda: session)
            async with mcp.Client(server) as client, client.listen(resources_list_changed=True) as events:
                value_of(await client.call_tool("agentos_list_agents", {}))
                await trio.to_thread.run_sync(kernel.stop)
                lost = await client.call_tool("agentos_list_agents", {})
                await trio.to_thread.run_sync(kernel.start_again)
                found = await client.call_tool("agentos_list_agents", {})
                assert isinstance(await anext(events), ResourcesListChanged), "changes may have been missed"

    assert "unavailable: no kernel" in error_of(lost)
    assert value_of(found) == {"agents": []}


async def test_a_revoked_client_is_told_and_its_calls_end(kernel: Kernel) -> None:
    from agentos.userland.mcp.server import build_server

    current = True
    failed: list[str] = []

    async def sleep(client: mcp.Client) -> None:
        failed.append(error_of(await client.call_tool("agentos_exec", {"command": "sleep 1000", "timeout": 0})))

    with trio.fail_after(PATIENCE):
        async with open_session(TestEntry("revoked"), kernel.socket, lambda: current) as session:
            async with mcp.Client(build_server(lambda: session)) as client, trio.open_nursery() as nursery:
                value_of(await client.call_tool("agentos_list_agents", {}))
                nursery.start_soon(sleep, client)
                await trio.testing.wait_all_tasks_blocked(0.05)
                current = False
                refused = await client.call_tool("agentos_list_agents", {})
                with pytest.raises(mcp.MCPError, match="revoked: "):
                    await client.list_resources(cache_mode="bypass")
            with pytest.raises(Revoked):
                await session.guest()

    assert "revoked: the operator has revoked this client (mcp:revoked)" in error_of(refused)
    assert len(failed) == 1


async def test_an_entry_that_cannot_be_read_allows_nothing(kernel: Kernel) -> None:
    def fail() -> bool:
        raise PermissionError("no")

    async with open_session(TestEntry("unread"), kernel.socket, fail) as session:
        with pytest.raises(Unavailable):
            await session.guest()


async def test_an_entry_with_mistakes_says_so(kernel: Kernel) -> None:
    async with open_session(TestEntry("mistaken", level="nonsense"), kernel.socket) as session:
        with pytest.raises(BadRequest, match="nonsense"):
            await session.guest()
    async with open_session(TestEntry("lonely"), "/nowhere/socket") as session:
        with pytest.raises(ConnectionFailed):
            await session.guest()


def test_the_key_of_request_states_is_kept(tmp_path: Path) -> None:
    key = load_state_key(tmp_path)

    assert len(key) == 32
    assert load_state_key(tmp_path) == key
    assert (tmp_path / "mcp" / "request-state.key").stat().st_mode & 0o777 == 0o600
