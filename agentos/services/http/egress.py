"""Egress: opens every outgoing TCP connection that the kernel makes for agents, to addresses that were judged."""

import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address

import trio
from attrs import define, field

from agentos_sdk.errors import PermissionDenied, Unavailable

from .addresses import Address, address_text, embedded_ipv4, format_authority, is_local
from .destination import is_address
from .resolver import Resolver
from .settings import HttpSettings

NEXT_ATTEMPT_SECONDS = 0.25  # until the next address is tried beside the one before (RFC 8305)
MAX_ATTEMPTS = 8  # addresses of one host that are tried
MAX_PROXY_HEAD = 16 << 10  # bytes of a proxy's answer to CONNECT
STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})\b")

JudgeAddress = Callable[[IPv4Address | IPv6Address, int], None]
"""Judges an address and a port before they are connected to; raises ``PermissionDenied`` with the reason."""


@define(eq=False)
class Egress:
    """One per kernel. ``own_listeners`` are addresses and ports that the kernel listens on: refused to every caller."""

    settings: HttpSettings = field(factory=HttpSettings)
    own_listeners: set[tuple[Address, int]] = field(factory=set)
    resolver: Resolver = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.resolver = Resolver(self.settings.resolver)

    @property
    def upstream_proxy(self) -> str | None:
        """The upstream proxy as HOST:PORT."""
        return format_authority(*self.settings.upstream_proxy) if self.settings.upstream_proxy is not None else None

    @contextmanager
    def refuse(self, listener: socket.socket) -> Iterator[None]:
        """Refuse connections to a listener of the kernel's on the host's network."""
        host, port = listener.getsockname()[:2]
        own = ip_address(host), port
        self.own_listeners.add(own)
        try:
            yield
        finally:
            self.own_listeners.discard(own)

    async def connect(self, owner: int, host: str, port: int, judge: JudgeAddress) -> trio.SocketStream:
        """Connect to ``host``, as a :class:`~.destination.Destination` has it, for the agent with the id ``owner``.

        The host was judged before; its name is resolved only now. Every address is judged, and the connection is to
        one that passed. With an upstream proxy the proxy resolves names and connects: only a host that is an address
        is judged here. Raises ``PermissionDenied``, ``Unavailable``, ``Timeout``.
        """
        proxy = self.settings.upstream_proxy
        if proxy is not None:
            self.judge_host(host, port, judge)
            stream = await connect_any(await self._find_addresses(owner, proxy[0]), *proxy)
            return await open_tunnel(stream, format_authority(host, port))
        addresses = await self._find_addresses(owner, host)
        return await connect_any(self._judge_all(addresses, port, judge), host, port)

    def judge_host(self, host: str, port: int, judge: JudgeAddress) -> None:
        """Judge a host that is an address, as connecting to it will; names pass. Raises as :meth:`connect` does."""
        if is_address(host):
            self._judge(ip_address(host), port, judge)

    async def _find_addresses(self, owner: int, host: str) -> Sequence[Address]:
        return [ip_address(host)] if is_address(host) else await self.resolver.resolve(owner, host)

    def _judge_all(self, addresses: Sequence[Address], port: int, judge: JudgeAddress) -> Sequence[Address]:
        """The addresses that passed; raises the first refusal if none did."""
        passed, refusals = [], []
        for address in addresses:
            try:
                self._judge(address, port, judge)
            except PermissionDenied as refusal:
                refusals.append(refusal)
            else:
                passed.append(address)
        if not passed:
            raise refusals[0]
        return passed

    def _judge(self, address: Address, port: int, judge: JudgeAddress) -> None:
        try:
            if self._is_own_listener(address, port):
                where = format_authority(address_text(address), port)
                raise PermissionDenied(f"{where} is the kernel's own, and refused to all agents", rule=OWN)
            judge(address, port)
        except OSError as error:
            raise Unavailable(f"can't tell which addresses are this host's: {error}") from None

    def _is_own_listener(self, address: Address, port: int) -> bool:
        listening = {own for own, at in self.own_listeners if at == port}
        reached = {address, embedded_ipv4(address) or address}
        if not listening or reached & listening:
            return bool(listening)
        if any(one.is_unspecified for one in reached):  # a connection to 0.0.0.0 reaches loopback
            return True
        of_all = any(own.is_unspecified for own in listening)
        return of_all and any(one.is_loopback or is_local(one) for one in reached)


OWN = "the kernel's own listeners (default denials)"  # in place of a rule's text


async def connect_any(addresses: Sequence[Address], host: str, port: int) -> trio.SocketStream:
    """Connect to one of the addresses; each further one is tried when the one before failed or is slow.

    Raises ``Unavailable``.
    """
    connected: list[trio.SocketStream] = []
    errors: list[OSError] = []

    async def attempt(address: Address, failed: trio.Event) -> None:
        try:
            connected.append(await connect_one(address, port))
        except OSError as error:
            errors.append(error)
            failed.set()
        else:
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for address in addresses[:MAX_ATTEMPTS]:
                failed = trio.Event()
                nursery.start_soon(attempt, address, failed)
                with trio.move_on_after(NEXT_ATTEMPT_SECONDS):
                    await failed.wait()
    except BaseException:
        _close(connected)
        raise
    if not connected:
        raise Unavailable(f"no connection to {format_authority(host, port)}: {errors[0].strerror or errors[0]}")
    _close(connected[1:])  # two succeeded at once
    return connected[0]


async def connect_one(address: Address, port: int) -> trio.SocketStream:
    """Connect to exactly this address and port; raises ``OSError``."""
    family = trio.socket.AF_INET6 if address.version == 6 else trio.socket.AF_INET
    sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await sock.connect((address_text(address), port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


async def open_tunnel(stream: trio.SocketStream, authority: str) -> trio.SocketStream:
    """Ask the HTTP proxy at the other end for a connection to HOST:PORT; raises ``Unavailable``."""
    what = "ended the connection"
    try:
        await stream.send_all(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        status = STATUS.match(await _read_head(stream.socket))
        if status is not None and status[1].startswith(b"2"):
            return stream
        what = "answered no HTTP" if status is None else f"answered {status[1].decode()}"
    except (OSError, trio.BrokenResourceError):
        pass
    except BaseException:
        _close([stream])
        raise
    _close([stream])
    raise Unavailable(f"no connection to {authority}: the upstream proxy {what}")


async def _read_head(sock: trio.socket.SocketType) -> bytes:
    """Read to the empty line that ends a head, and no byte of what follows."""
    head = b""
    while len(head) < MAX_PROXY_HEAD:
        ahead = await sock.recv(4096, trio.socket.MSG_PEEK)
        if not ahead:
            raise ConnectionResetError
        at = (head + ahead).find(b"\r\n\r\n")
        head += await sock.recv(len(ahead) if at < 0 else at + 4 - len(head))
        if at >= 0:
            return head
    return b""


def _close(streams: Sequence[trio.SocketStream]) -> None:
    for stream in streams:
        stream.socket.close()
