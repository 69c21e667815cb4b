"""A proxy on loopback with real rules and a real DNS client, and servers that it may reach or not."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import trio
from attrs import define, field

from agentos.agents.jail.filtered_network import FilteredNetwork
from agentos.gateways.http_proxy.proxy import Proxy
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Approvals, Effect
from agentos.kernel.table import Table
from agentos.kernel.wire.listener import ConnectionLimit
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.levels import LEVELS
from agentos.permissions.patterns.base import Names
from agentos.permissions.rule import PermissionSet, Rule
from agentos.sandbox.steps import SocketAddress
from agentos.services.http.egress import Egress
from agentos.services.http.settings import HttpSettings
from agentos_sdk.errors import QuotaExceeded
from tests.support.rights import Notebook
from tests.support.servers.dns_server import DnsServer, Records, serve_dns
from tests.support.wire import PATIENCE

AGENT = 7
NAMES = Names("/home/op", "/etc/agentos")
Handler = Callable[[trio.SocketStream], Awaitable[None]]


def rules(**texts: Sequence[str]) -> PermissionSet:
    """A set of rules about domains: by effect, their patterns."""
    effects: Sequence[Effect] = ("deny", "ask", "allow")
    written = [Rule(effect, "domains", text, "the test's") for effect in effects for text in texts.get(effect, ())]
    return PermissionSet("the test's", (*written, *LEVELS["minimal"].rules))


def listen() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


@define
class Counted:
    """Quotas of requests and bytes."""

    requests: int = 0
    bytes: int = 0
    most_bytes: int = 1 << 40

    def charge(self, caller: Caller, requests: int, size: int, used: bool) -> None:
        self.requests += requests
        self.bytes += size
        if self.bytes > self.most_bytes:
            raise QuotaExceeded("http_bytes: the quota is used up")


@define(eq=False)
class World:
    """``asked`` are the names of which the DNS server was asked; ``served`` the connections to each server."""

    authorizer: PermissionAuthorizer
    dns: DnsServer
    notebook: Notebook
    caller: Caller
    network: FilteredNetwork
    limit: ConnectionLimit
    servers: trio.Nursery
    scope: trio.CancelScope
    quotas: "Counted"
    served: list[int] = field(factory=list)

    def grant(self, **texts: Sequence[str]) -> None:
        """Replace the agent's rules."""
        self.authorizer.replace_all(AGENT, rules(**texts), NAMES)

    async def serve(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> int:
        """Run a server until the end of the world; returns its port."""
        [listener] = await trio.open_tcp_listeners(port, host=host)
        port = listener.socket.getsockname()[1]

        async def serve_one(stream: trio.SocketStream) -> None:
            self.served.append(port)
            async with stream:
                await handler(stream)

        self.servers.start_soon(trio.serve_listeners, serve_one, [listener])
        return port

    async def connect(self, port: int | None = None) -> trio.SocketStream:
        """A connection to the proxy, or to the kernel's listener on that port of the jail."""
        listener = self.network.proxy if port is None else self.network.ports[port]
        return await trio.open_tcp_stream(*listener.getsockname())

    async def tell(self, request: bytes) -> bytes:
        """What the proxy answers to this, up to the end of the connection."""
        async with await self.connect() as stream:
            await stream.send_all(request)
            if not request.startswith(b"CONNECT "):  # whose sender would count as gone
                await stream.send_eof()
            received = b""
            while data := await stream.receive_some():
                received += data
            return received

    async def tunnel(self, authority: str) -> trio.SocketStream:
        """An open tunnel; fails if it is refused."""
        stream = await self.connect()
        await stream.send_all(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            data = await stream.receive_some(1)
            assert data, received
            received += data
        assert received.startswith(b"HTTP/1.1 200 "), received
        return stream

    def outcomes(self) -> Sequence[str]:
        """The audit entries about what has ended."""
        return [f"{one.about}: {one.outcome}" for one in self.notebook.entries if one.phase == "outcome"]


@asynccontextmanager
async def world(
    records: Mapping[str, Records] | None = None, approvals: Approvals | None = None, **granted: Sequence[str]
) -> AsyncIterator[World]:
    """A running proxy. ``records`` are addresses by name; every name in ``test`` has 127.0.0.1 unless it says else."""
    authorizer = PermissionAuthorizer(AgentTree(lambda *_: True, str, lambda *_: False, lambda *_: False))
    authorizer.add_caller(AGENT, rules(**granted), NAMES)
    notebook, quotas = Notebook(), Counted()
    caller = Caller(AGENT, "agent", "worker", Table([]), authorizer, notebook)
    network = FilteredNetwork(listen(), socket.socket(type=socket.SOCK_DGRAM), listen(), {}, open_on_loopback)
    network.dns_udp.bind(("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        stack.callback(network.close)
        dns = await stack.enter_async_context(serve_dns(DnsServer({} if records is None else records)))
        nursery = await stack.enter_async_context(trio.open_nursery())
        limit = ConnectionLimit(1000)
        proxy = Proxy(
            Egress(HttpSettings(resolver=dns.address)),
            authorizer,
            approvals,
            limit,
            ask_seconds=30,
            charge=quotas.charge,
        )
        nursery.start_soon(partial(proxy.serve, network, caller))
        with trio.fail_after(PATIENCE):
            yield World(authorizer, dns, notebook, caller, network, limit, nursery, nursery.cancel_scope, quotas)
        nursery.cancel_scope.cancel()


async def open_on_loopback(addresses: Sequence[SocketAddress]) -> Sequence[socket.socket]:
    """Listeners that stand for those on these ports in a jail: here they have free ones."""
    return [listen() for _ in addresses]
