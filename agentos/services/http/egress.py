"""Egress: opens every outgoing TCP connection of agents, to addresses that were judged."""

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from weakref import WeakValueDictionary

import trio
from attrs import define, field

from agentos_sdk.errors import PermissionDenied, Timeout, Unavailable

from .addresses import Address, address_text, embedded_ipv4, find_range, is_local
from .destination import is_address
from .resolver import MAX_LOOKUPS, OwnerLimit, resolve
from .settings import HttpSettings

LOOKUP_SECONDS = 5.0  # for one name, waiting for a free lookup included
NEXT_ATTEMPT_SECONDS = 0.25  # until the next address is tried beside the one before (RFC 8305)

JudgeAddress = Callable[[IPv4Address | IPv6Address, int], None]
"""Judges an address and a port before they are connected to; raises ``PermissionDenied`` with the reason."""


@define(eq=False)
class Egress:
    """One per kernel. ``own_listeners`` are addresses and ports that the kernel listens on: refused to every caller."""

    settings: HttpSettings = field(factory=HttpSettings)
    own_listeners: set[tuple[Address, int]] = field(factory=set)
    _lookups: WeakValueDictionary[int, OwnerLimit] = field(factory=WeakValueDictionary)

    async def connect(self, owner: int, host: str, port: int, judge: JudgeAddress) -> trio.SocketStream:
        """Connect to ``host``, as a :class:`~.destination.Destination` has it, for the agent with the id ``owner``.

        The host's name was judged before. It is resolved only now, every address is judged, and the connection is to
        one that passed. Raises ``PermissionDenied``, ``Unavailable``, ``Timeout``.
        """
        return await _connect_any(self._judged(await self._addresses(owner, host), port, judge), host, port)

    async def _addresses(self, owner: int, host: str) -> Sequence[Address]:
        if is_address(host):
            return [ip_address(host)]
        limit = self._lookups.setdefault(owner, OwnerLimit(MAX_LOOKUPS))
        try:
            with trio.fail_after(LOOKUP_SECONDS):
                return await resolve(host, limit, self.settings.resolver)
        except trio.TooSlowError:
            raise Timeout(f"the name {host} was not resolved within {LOOKUP_SECONDS:g} s") from None

    def _judged(self, addresses: Sequence[Address], port: int, judge: JudgeAddress) -> Sequence[Address]:
        """The addresses that passed; raises the first refusal if none did."""
        passed, refusals = [], []
        for address in addresses:
            try:
                if self._is_own_listener(address, port):
                    raise PermissionDenied(f"{address_text(address)}:{port} is the kernel's own and refused to agents")
                judge(address, port)
            except PermissionDenied as refusal:
                refusals.append(refusal)
            else:
                passed.append(address)
        if not passed:
            raise refusals[0]
        return passed

    def _is_own_listener(self, address: Address, port: int) -> bool:
        listening = [own for own, at in self.own_listeners if at == port]
        if not listening:
            return False
        reached = {address, embedded_ipv4(address) or address}
        if not reached.isdisjoint(listening):
            return True
        # A listener on a wildcard address has all addresses of this host, a connection to one reaches loopback.
        return any(find_range(one) in ("loopback", "this host") or is_local(one) for one in reached)


async def _connect_any(addresses: Sequence[Address], host: str, port: int) -> trio.SocketStream:
    """Connect to the first address that answers; each further one is tried when the one before failed or is slow."""
    connected: list[trio.SocketStream] = []
    errors: list[OSError] = []

    async def attempt(address: Address, failed: trio.Event) -> None:
        try:
            stream = await _connect_one(address, port)
        except OSError as error:
            errors.append(error)
            failed.set()
        else:
            connected.append(stream)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for address in addresses:
            failed = trio.Event()
            nursery.start_soon(attempt, address, failed)
            with trio.move_on_after(NEXT_ATTEMPT_SECONDS):
                await failed.wait()
    for further in connected[1:]:
        further.socket.close()
    if not connected:
        raise Unavailable(f"no connection to {host} port {port}: {errors[0].strerror or errors[0]}")
    return connected[0]


async def _connect_one(address: Address, port: int) -> trio.SocketStream:
    family = trio.socket.AF_INET6 if address.version == 6 else trio.socket.AF_INET
    sock = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await sock.connect((address_text(address), port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)
