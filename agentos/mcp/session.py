"""One instance of an MCP server over all lives of its program: calls wait here until it is ready."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio
from attrs import define, field

from agentos.agents.jail.jail import Unhealthy
from agentos.agents.registry import Agent
from agentos.kernel.call import Call
from agentos_sdk.errors import Busy, Unavailable

from .connection.requests import Requests
from .result import CallResult
from .settings import ServerSettings
from .tool import Tool

if TYPE_CHECKING:
    from .connection.client import Connected

MAX_OPEN_CALLS: Final = 32
ENDING_SECONDS: Final = 1.0  # from the end of its output until a program is killed
WORKSPACE_URI: Final = "file:///workspace"


class Transport(Protocol):
    """How a client reaches a server. ``over`` is set when nothing can come any more, ``fault`` then may say why."""

    over: trio.Event
    fault: str | None

    def connect(self) -> AbstractAsyncContextManager[Any]:
        """The streams that the SDK's client takes."""


@define(eq=False)
class Session:
    """``secrets`` are values that a server may hold, and that nothing of what it sends may have in it."""

    settings: ServerSettings
    requests: Requests
    secrets: Sequence[str] = ()
    problem: str | None = None  # why it is over for good
    calls: int = 0  # open ones
    refused: Mapping[str, str] = field(factory=dict)  # tools that can't be used: the reason by the name
    checking: bool = False  # whether the server answers at all
    used_at: float = field(factory=trio.current_time)
    _connected: "Connected | None" = None
    _tools: Sequence[Tool] = ()
    _changed: trio.Event = field(factory=trio.Event)
    _listing: trio.Lock = field(factory=trio.Lock)

    # -- The server's side -----------------------------------------------------------------------------------------

    async def converse(self, agent: Agent, stream: trio.SocketStream) -> None:
        """Speak with the program of a life; a server that breaks the protocol is killed, and its supervisor decides."""
        from .connection.transport import LineTransport

        async with stream:
            secrets = [secret.encode() for secret in self.secrets]
            transport = LineTransport(stream, secrets, lambda text: agent.output.add("stdout", text))
            why = await self.run(transport, agent.connect, WORKSPACE_URI)
            if transport.fault is None:
                await trio.sleep(ENDING_SECONDS)  # this is cancelled when the program has ended
            jail = agent.life.jail
            if jail is not None and jail.sandbox.status is None:
                jail.exceeded(Unhealthy(why))

    async def run(self, transport: Transport, on_ready: Callable[[], None], root: str | None) -> str:
        """Serve calls until the connection is over; returns why. Raises nothing but cancellation."""
        from .connection.client import connect, describe_failure

        waiting, late = trio.CancelScope(), False

        async def limit_handshake() -> None:
            nonlocal late
            with waiting:
                await trio.sleep(self.settings.timeout)
                late = True
                nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(limit_handshake)
                streams, sampling = transport.connect(), self.settings.sampling
                async with connect(streams, self.settings.name, root, sampling, self.requests) as connected:
                    waiting.cancel()
                    on_ready()
                    await self._serve(connected, transport.over)
                nursery.cancel_scope.cancel()
        except Exception as error:
            return transport.fault or describe_failure(error, waiting.cancel_called)
        if late:
            return f"MCP's handshake took more than {self.settings.timeout:g} s"
        return transport.fault or "it closed its standard output"

    async def _serve(self, connected: "Connected", over: trio.Event) -> None:
        self._connected, self._tools = connected, ()
        self._announce()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connected.watch_tools)
                await over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._connected = None

    def end(self, problem: str) -> None:
        """It won't be ready any more; callers that wait for it get this error."""
        self.problem = self.problem or problem
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @property
    def is_connected(self) -> bool:
        return self._connected is not None

    # -- The callers' side -----------------------------------------------------------------------------------------

    async def list_tools(self) -> Sequence[Tool]:
        """The tools that the server offers now. Raises ``CallError``."""
        with self._count_call():
            async with self._listing:
                return await self._list_tools()

    async def find_tools(self) -> Sequence[Tool]:
        """As :meth:`list_tools`, but the server is asked only if it has said that they have changed."""
        with self._count_call():
            async with self._listing:
                connected = await self._wait_until_connected()
                return self._tools if connected.fresh else await self._list_tools()

    async def call_tool(self, call: Call, tool: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool. Raises ``CallError``."""
        with self._count_call(), self.requests.during(call, tool):
            connected = await self._wait_until_connected()
            return await connected.call_tool(tool, arguments)

    async def _list_tools(self) -> Sequence[Tool]:
        connected = await self._wait_until_connected()
        found = await connected.list_tools()
        if connected is self._connected:
            self._tools, self.refused = found, connected.refused
        return found

    async def _wait_until_connected(self) -> "Connected":
        while self._connected is None:
            if self.problem is not None:
                raise Unavailable(f"the MCP server {self.settings.name} {self.problem}")
            await self._changed.wait()
        return self._connected

    @contextmanager
    def _count_call(self) -> Iterator[None]:
        if self.calls >= MAX_OPEN_CALLS:
            raise Busy(f"the MCP server {self.settings.name} works on {MAX_OPEN_CALLS} calls already: try again later")
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self.used_at = trio.current_time()
