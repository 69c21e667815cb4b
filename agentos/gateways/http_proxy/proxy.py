"""The way out of a jail with a filtered network: an HTTP proxy, a DNS stub, and listeners for programs without proxy.

Whichever way a program takes, its connection has a host name, a port and the agent's rules: it is judged, audited and
ended by the same functions.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import IPv4Address

import trio
from attrs import define, evolve, field, frozen

from agentos.agents.jail.filtered_network import FilteredNetwork
from agentos.http.accept import accept
from agentos.kernel.caller import Allowance, Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.ports import Approvals
from agentos.kernel.wire.listener import ConnectionLimit
from agentos.permissions.authorizer import PermissionAuthorizer
from agentos.sandbox.errors import SandboxError
from agentos.services.http.destination import Destination, is_address, parse_host, parse_tunnel, parse_url
from agentos.services.http.egress import Egress
from agentos_sdk.errors import BadRequest, Busy, CallError, PermissionDenied, Timeout

from .client_hello import HelloReader, NoServerName, asks_to_retry
from .dns_stub import DNSStub
from .forward import Forward
from .incoming import HEAD_SECONDS, READ_SIZE, Body, Incoming
from .name_table import NameTable
from .outgoing import Charge, OutgoingConnection, OutgoingConnections
from .refusal import ESTABLISHED, refuse
from .request_head import RequestHead, parse_head
from .shown_request import show_request, show_tunnel
from .tunnel import IDLE_SECONDS, Tunnel, make_buffer

HTTP_PORT, TLS_PORT = 80, 443
MAX_CONNECTIONS = 64  # of one agent; more wait until one has ended
NEXT_REQUEST_SECONDS = 60.0  # in which a client may keep its connection without a request
MAX_SILENT = 16  # tunnels of one agent that wait for a ClientHello; one more ends the one that has waited longest
ANSWER_SECONDS = 30.0  # until a TLS server has answered the ClientHello
LINGER_SECONDS = 2.0  # in which further input is dropped, so that the client can read a refusal
ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"  # TLS alert 49 (RFC 8446, 6.2)
DISCONNECTED = (trio.BrokenResourceError, trio.ClosedResourceError)

log = logging.getLogger(__name__)

Serve = Callable[[trio.SocketStream], Awaitable[None]]


@frozen(eq=False)
class Proxy:
    """What the filtered networks of all agents share.

    A connection waits ``ask_seconds`` for a person to approve it. ``charge`` counts requests and bytes towards quotas.
    """

    egress: Egress
    authorizer: PermissionAuthorizer
    approvals: Approvals | None
    connection_limit: ConnectionLimit
    ask_seconds: float
    charge: Charge
    buffer: memoryview = field(factory=make_buffer)

    async def serve(self, network: FilteredNetwork, caller: Caller) -> None:
        """Serve the network of one life of an agent until cancelled."""
        outgoings = OutgoingConnections(
            caller, self.authorizer, self.approvals, self.egress, self.ask_seconds, self.charge
        )
        await AgentProxy(self, network, caller, outgoings).serve()


@define(eq=False)
class AgentProxy:
    """Serves all listeners of one agent. A failing connection ends alone."""

    common: Proxy
    network: FilteredNetwork
    caller: Caller
    outgoings: OutgoingConnections
    names: NameTable = field(factory=NameTable)
    _guest: Caller = field(init=False)  # its proxy's connections don't count towards those of its system calls
    _slots: trio.Semaphore = field(factory=lambda: trio.Semaphore(MAX_CONNECTIONS))
    _silent: dict[trio.CancelScope, None] = field(factory=dict)  # tunnels without a ClientHello, the oldest first
    _rules_changed: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._guest = evolve(self.caller, allowance=Allowance())

    async def serve(self) -> None:
        stub = DNSStub(self.names, self._could_reach)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stub.serve, self.network.dns_udp, self.network.dns_tcp)
            nursery.start_soon(self._listen, self.network.proxy, self._serve_client)
            for port, listener in self.network.ports.items():
                nursery.start_soon(self._listen, listener, partial(self._serve_program, port))
            observers = self.common.authorizer.observers
            observers.append(self._take_rules)
            try:
                await self._listen_on_named_ports(nursery)
            finally:
                observers.remove(self._take_rules)

    def _could_reach(self, name: str) -> bool:
        try:
            return parse_host(name) == name and self.common.authorizer.could_reach(self.caller, name)
        except ValueError:
            return False

    def _take_rules(self) -> None:
        """Close the connections that changed rules no longer allow, before any other task runs."""
        self.outgoings.judge_again()
        self._rules_changed.set()

    async def _listen_on_named_ports(self, nursery: trio.Nursery) -> None:
        """Whenever rules have changed, listen on the ports that are new in them."""
        while True:
            self._rules_changed = trio.Event()
            try:
                added = await self.network.add_ports(self.common.authorizer.named_ports(self.caller))
            except SandboxError as error:  # the jail has ended, or a program in it has one of these ports
                log.warning("%s: no listener for the ports of its new rules: %s", self.caller.name, error)
                added = {}
            for port, listener in added.items():
                nursery.start_soon(self._listen, listener, partial(self._serve_program, port))
            await self._rules_changed.wait()

    # -- Connections -----------------------------------------------------------------------------------------------

    async def _listen(self, listening: socket.socket, serve: Serve) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        async with trio.open_nursery() as nursery:
            while True:
                stream = await accept(listener)
                if stream is None:
                    continue
                try:
                    await self._slots.acquire()
                except BaseException:
                    stream.socket.close()
                    raise
                nursery.start_soon(self._run, stream, serve)

    async def _run(self, stream: trio.SocketStream, serve: Serve) -> None:
        limit = self.common.connection_limit
        full = limit.describe_full(self._guest)
        try:
            if full is None:
                with limit.count(self._guest):
                    await serve(stream)
            else:
                await end_with(stream, refuse(Busy(full)))
        except* DISCONNECTED:
            pass
        except* Exception as bugs:
            internal(bugs, f"the proxy of {self.caller.name}")
        finally:
            self._slots.release()
            stream.socket.close()

    async def _serve_client(self, stream: trio.SocketStream) -> None:
        """Serve a program that knows the proxy."""
        await self._serve_requests(Incoming(stream), None)

    async def _serve_program(self, port: int, stream: trio.SocketStream) -> None:
        """Serve a program that has connected to the address of a name."""
        name = self.names.name_of(IPv4Address(stream.socket.getsockname()[0]))
        if name is None:
            return
        server = Destination(None, name, port, None)
        if port == HTTP_PORT:
            await self._serve_requests(Incoming(stream), server)
            return
        is_open = False
        try:
            async with self.outgoings.open(stream, server, partial(show_tunnel, server)) as outgoing:
                is_open = True
                await self._run_tunnel(Incoming(stream), outgoing)
        except CallError:
            if port == TLS_PORT and not is_open:
                await end_with(stream, ACCESS_DENIED)

    # -- Requests --------------------------------------------------------------------------------------------------

    async def _serve_requests(self, incoming: Incoming, server: Destination | None) -> None:
        """Serve requests until the connection ends. ``server``: the client speaks to it directly, or in a tunnel."""
        more = True
        while more:
            destination: Destination | None = None
            try:
                head = await incoming.read_head(NEXT_REQUEST_SECONDS)
                if head is None:
                    return
                request = parse_head(head)
                if request.method == "CONNECT" and server is None:
                    destination = parse_tunnel(request.target)
                    await self._serve_tunnel(incoming, destination)
                    return
                destination, target = read_target(request, server)
                more = await self._forward(incoming, request, destination, target)
            except CallError as error:
                await end_with(incoming.stream, refuse(error))
                return
            except ValueError as error:  # BadHead, or what isn't a URL
                await end_with(incoming.stream, refuse(BadRequest(str(error))))
                return
            except trio.TooSlowError:
                await end_with(incoming.stream, refuse(Timeout(f"no whole request within {HEAD_SECONDS:g} s")))
                return

    async def _forward(self, incoming: Incoming, request: RequestHead, destination: Destination, target: str) -> bool:
        """Pass on one request and its response; whether the client may send another one."""
        body, host, forward = Body(incoming, request.length), destination.authority.removesuffix(":80"), None
        show = partial(show_request, incoming.stream, request, body, destination, target)
        try:
            async with self.outgoings.open(incoming.stream, destination, show) as outgoing:
                forward = Forward(incoming.stream, outgoing.server, request, body, host, target, outgoing.traffic)
                try:
                    return await forward.run()
                finally:
                    outgoing.remark = f"status {forward.status}, " if forward.status is not None else ""
        except CallError:
            if forward is None or forward.status is None:
                raise
        return False  # the response has begun, and can't end well

    # -- Tunnels ---------------------------------------------------------------------------------------------------

    async def _serve_tunnel(self, incoming: Incoming, destination: Destination) -> None:
        """Serve CONNECT. On port 80 the tunnel carries plain HTTP, of which every request is judged."""
        show = partial(show_tunnel, destination)
        if destination.port == HTTP_PORT and not is_address(destination.host):
            await self.outgoings.require(incoming.stream, destination, show)
            await incoming.stream.send_all(ESTABLISHED)
            await self._serve_requests(incoming, destination)
            return
        is_open = False
        try:
            async with self.outgoings.open(incoming.stream, destination, show) as outgoing:
                await incoming.stream.send_all(ESTABLISHED)
                is_open = True
                await self._run_tunnel(incoming, outgoing)
        except CallError:
            if not is_open:
                raise

    async def _run_tunnel(self, incoming: Incoming, outgoing: OutgoingConnection) -> None:
        to = outgoing.destination
        if to.port == TLS_PORT and not is_address(to.host):
            await self._begin_tls(incoming, outgoing)
        if incoming.buffer:
            await outgoing.server.send_all(incoming.buffer)
            outgoing.traffic.count(sent=len(incoming.buffer))
        await Tunnel(incoming.stream, outgoing.server, self.common.buffer, outgoing.traffic).run()

    async def _begin_tls(self, incoming: Incoming, outgoing: OutgoingConnection) -> None:
        """Check the ClientHello, and another one if the server asks for it.

        Until the server has answered, nothing but the first one is sent to it: a second one could follow at once.
        """
        reader = HelloReader()
        await self._check_server_name(incoming, outgoing, reader)
        hello, incoming.buffer = incoming.buffer[: reader.end], incoming.buffer[reader.end :]
        await outgoing.server.send_all(hello)
        answer = await receive_answer(outgoing.server)
        if answer:
            await incoming.stream.send_all(answer)
        outgoing.traffic.count(sent=len(hello), received=len(answer))
        if asks_to_retry(answer):
            await self._check_server_name(incoming, outgoing, HelloReader(is_second=True))

    async def _check_server_name(self, incoming: Incoming, outgoing: OutgoingConnection, reader: HelloReader) -> None:
        """Receive a ClientHello, which must name the tunnel's host. It is left in the buffer, and not sent yet.

        A busy client may need long for it, so silent tunnels are bounded by their number, not by a short time.
        """
        to = outgoing.destination
        wrong: str | None = f"no ClientHello, and {MAX_SILENT} tunnels that were opened later wait for theirs"
        with trio.move_on_after(IDLE_SECONDS) as scope:
            self._silent[scope] = None
            if len(self._silent) > MAX_SILENT:
                next(iter(self._silent)).cancel()
            try:
                name = await read_server_name(incoming, reader)
                wrong = f"the server name is {name}" if name != to.host else None
            except NoServerName as error:
                wrong = str(error)
            finally:
                del self._silent[scope]
        if wrong is not None:
            outgoing.remark = f"{wrong}, "
            await end_with(incoming.stream, ACCESS_DENIED)
            raise PermissionDenied(f"{to}: {wrong}")
        incoming.buffer = reader.received


def read_target(request: RequestHead, server: Destination | None) -> tuple[Destination, str]:
    """The destination and target of a request; raises ``ValueError``, or ``PermissionDenied`` for another host."""
    if server is None:
        if not request.target.lower().startswith("http://"):
            raise ValueError("this is a proxy: a request names http://HOST/PATH, and for https:// use CONNECT")
        return parse_url(request.target, request.method)
    if not request.target.startswith("/"):
        raise ValueError("a request that isn't sent to a proxy names a path")
    named, _ = parse_url(f"http://{request.host}/", "GET")
    if (named.host, named.port) != (server.host, server.port):
        raise PermissionDenied(f"the connection is to {server.authority}, but the Host header names {named.authority}")
    return parse_url(f"http://{server.authority}{request.target}", request.method)


async def read_server_name(incoming: Incoming, reader: HelloReader) -> str:
    """The server name in the ClientHello with which the client begins; raises :class:`NoServerName`."""
    name = reader.feed(bytes(incoming.buffer))
    while name is None:
        data = await incoming.stream.receive_some(READ_SIZE)
        if not data:
            raise NoServerName("the data ends within the ClientHello")
        name = reader.feed(bytes(data))
    return name


async def receive_answer(server: trio.SocketStream) -> bytes:
    """What a TLS server sends first, enough to tell whether it asks for another ClientHello; less if it has ended.

    Raises ``Timeout``.
    """
    answer = b""
    try:
        with trio.fail_after(ANSWER_SECONDS):
            while asks_to_retry(answer) is None and (data := await server.receive_some(READ_SIZE)):
                answer += data
    except trio.TooSlowError:
        raise Timeout(f"the server didn't answer the ClientHello within {ANSWER_SECONDS:g} s") from None
    return answer


async def end_with(stream: trio.SocketStream, data: bytes) -> None:
    """Send the last data of a connection, and give the client time to read it."""
    with trio.move_on_after(LINGER_SECONDS):
        await stream.send_all(data)
        await stream.send_eof()
        while await stream.receive_some(READ_SIZE):
            pass
