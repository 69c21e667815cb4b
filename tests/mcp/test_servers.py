"""The bounds on instances of MCP servers, their owners and their end; each accepts a connection and sends nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from agentos.kernel.caller import Caller
from agentos.mcp import servers as module
from agentos.mcp import session
from agentos.mcp.servers import IDLE_SECONDS, RETRY_SECONDS, Servers
from agentos.mcp.settings import ServerSettings, Share
from agentos.services.events import AgentOver
from agentos_sdk.errors import Busy, CallError
from tests.permissions.approvals.approval_desk import ANN, BOB, OPERATOR

TIMEOUT = 5.0  # seconds that a server has to begin


@define(eq=False)
class Silent:
    """The transport to a server that says nothing. Its name is in ``closed`` when the connection has ended."""

    name: str
    closed: list[str]
    over: trio.Event = field(factory=trio.Event)
    fault: str | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        to_client, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, from_client = anyio.create_memory_object_stream[Any](8)
        try:
            async with to_client, incoming, outgoing, from_client:
                yield incoming, outgoing
        finally:
            self.closed.append(self.name)


@define(eq=False)
class Running:
    """Servers ``a`` to ``d``, whose instances are counted, and calls that wait for them."""

    servers: Servers
    nursery: trio.Nursery
    opened: list[str]
    closed: list[str]
    results: list[str] = field(factory=list)

    async def use(self, caller: Caller, server: str) -> None:
        """List a server's tools, which begins an instance where there is none."""
        try:
            await self.servers.list_tools(caller, server)
        except CallError as error:
            self.results.append(str(error))

    async def begin(self, caller: Caller, server: str) -> trio.CancelScope:
        """As :meth:`use`, and return when the instance has begun; the call ends with the scope."""
        scope, before = trio.CancelScope(), len(self.opened)

        async def use() -> None:
            with scope:
                await self.use(caller, server)

        self.nursery.start_soon(use)
        while len(self.opened) == before:
            await wait_all_tasks_blocked(0.001)
        return scope


@asynccontextmanager
async def running(share: Share = "agent", timeout: float = TIMEOUT) -> AsyncIterator[Running]:
    opened, closed = list[str](), list[str]()

    def open_remote(settings: ServerSettings) -> Any:
        opened.append(settings.name)
        return Silent(settings.name, closed)

    nothing = cast(Any, None)
    settings = {
        name: ServerSettings(name=name, url="http://x.test", permissions=nothing, timeout=timeout, share=share)
        for name in "abcd"
    }
    servers = Servers(settings, nothing, lambda: OPERATOR, nothing, nothing, open_remote)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(servers.serve)
        await wait_all_tasks_blocked()
        yield Running(servers, nursery, opened, closed)
        nursery.cancel_scope.cancel()


async def test_instances_are_bounded_for_a_family_and_for_all(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OF_FAMILY", 2)
    monkeypatch.setattr(module, "MAX_INSTANCES", 3)
    async with running() as here:
        for name in "ab":
            await here.begin(ANN, name)
        with pytest.raises(Busy, match="2 instances of MCP servers run for ann and its relatives already"):
            await here.servers.list_tools(ANN, "c")
        await here.begin(BOB, "a")
        with pytest.raises(Busy, match="3 instances of MCP servers run already"):
            await here.servers.list_tools(BOB, "b")
        assert here.results == []


async def test_an_instance_works_on_a_bounded_number_of_calls(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_OPEN_CALLS", 2)
    async with running() as here:
        await here.begin(ANN, "a")
        here.nursery.start_soon(here.use, ANN, "a")
        await wait_all_tasks_blocked()
        with pytest.raises(Busy, match="the MCP server a works on 2 calls already"):
            await here.servers.list_tools(ANN, "a")
        assert here.results == []


async def test_instances_are_those_of_one_agent_unless_all_share_them(mock_clock: MockClock) -> None:
    async with running() as here:
        await here.begin(ANN, "a")
        await here.begin(BOB, "a")
        here.servers.forget_agent(AgentOver(ANN.id, "ann"))
        await wait_all_tasks_blocked()
        assert here.results == ["the MCP server a was ended with the agent that used it"]
    async with running(share="all") as here:
        await here.begin(ANN, "a")
        here.nursery.start_soon(here.use, BOB, "a")
        await wait_all_tasks_blocked()
        here.servers.forget_agent(AgentOver(ANN.id, "ann"))
        await wait_all_tasks_blocked()
        assert (here.opened, here.results) == (["a"], [])


async def test_a_server_that_does_not_begin_is_tried_again_later(mock_clock: MockClock) -> None:
    async with running() as here:
        await here.begin(ANN, "a")
        mock_clock.jump(TIMEOUT)
        await wait_all_tasks_blocked()
        mock_clock.jump(RETRY_SECONDS - 1)
        await here.use(ANN, "a")
        mock_clock.jump(1)
        await here.begin(ANN, "a")

    began_not = "the MCP server a MCP's handshake took more than 5 s"
    assert here.results == [began_not, f"{began_not}; it may be started again in 1 s"]


@pytest.mark.parametrize(("caller", "ended"), [(OPERATOR, ["a"]), (ANN, [])], ids=["operator", "agent"])
async def test_an_instance_of_no_agent_ends_when_nothing_has_used_it_for_a_while(
    mock_clock: MockClock, caller: Caller, ended: list[str]
) -> None:
    async with running(timeout=1e6) as here:
        call = await here.begin(caller, "a")
        await pass_time(mock_clock, 2 * IDLE_SECONDS)
        assert here.closed == [], "a call is open"

        call.cancel()
        await wait_all_tasks_blocked()
        await pass_time(mock_clock, IDLE_SECONDS)
        assert here.closed == []
        await pass_time(mock_clock, IDLE_SECONDS)
        assert here.closed == ended


async def pass_time(clock: MockClock, seconds: float) -> None:
    for _ in range(10):
        clock.jump(seconds / 10)
        await wait_all_tasks_blocked()
