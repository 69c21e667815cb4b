"""The kernel's sockets in a jail with ``network = "filtered"``: all that its programs can reach.

The jail's network namespace has a loopback and no other interface. The kernel listens there for a proxy, a DNS stub
and, per port that the agent's rules name, for programs that ignore proxies: the stub answers a name with an address of
its own from :data:`ADDRESSES`, which is routed to loopback.
"""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Self

from attrs import define, field

from agentos.kernel.caller import Caller
from agentos.sandbox.plan import FILTERED_ADDRESSES
from agentos.sandbox.steps import SocketAddress

ADDRESSES = ipaddress.IPv4Network(FILTERED_ADDRESSES)
PROXY_PORT = 880  # below 1024, as DNS: programs in a jail can't bind there
DNS_PORT = 53
DEFAULT_PORTS = (80, 443)
MAX_PORTS = 64

_LOOPBACK, _ANY = "127.0.0.1", "0.0.0.0"
_URL = f"http://{_LOOPBACK}:{PROXY_PORT}"
_NO_PROXY = f"localhost,{_LOOPBACK},::1"
_VARIABLES = {"http_proxy": _URL, "https_proxy": _URL, "all_proxy": _URL, "no_proxy": _NO_PROXY}
ENVIRONMENT = {**_VARIABLES, **{name.upper(): value for name, value in _VARIABLES.items()}}
"""Tells programs that the jail has a proxy."""

Open = Callable[[Sequence[SocketAddress]], Awaitable[Sequence[socket.socket]]]
"""Opens sockets in the jail's network; raises :class:`~agentos.sandbox.errors.SandboxError`."""


def addresses(ports: Collection[int]) -> tuple[SocketAddress, ...]:
    """The sockets to open before the program starts; ``ports`` are those that the agent's rules name."""
    own: Sequence[SocketAddress] = (
        ("tcp", _LOOPBACK, PROXY_PORT),
        ("udp", _LOOPBACK, DNS_PORT),
        ("tcp", _LOOPBACK, DNS_PORT),
    )
    return (*own, *(("tcp", _ANY, port) for port in choose_ports(ports)))


def choose_ports(ports: Collection[int]) -> Sequence[int]:
    """The default ports and these, without those above :data:`MAX_PORTS` in number."""
    return [*dict.fromkeys((*DEFAULT_PORTS, *sorted(ports)))][:MAX_PORTS]


@define(eq=False)
class FilteredNetwork:
    """The sockets of one life, not blocking. ``ports`` are TCP listeners on 0.0.0.0 by port.

    A connection accepted by one of ``ports`` was made to the address that ``getsockname`` tells.
    """

    proxy: socket.socket
    dns_udp: socket.socket
    dns_tcp: socket.socket
    ports: dict[int, socket.socket]
    _open: Open = field(repr=False)

    @classmethod
    def take(cls, sockets: Sequence[socket.socket], open_more: Open) -> Self:
        """Take the sockets of :func:`addresses`, in that order."""
        proxy, dns_udp, dns_tcp, *listeners = sockets
        return cls(proxy, dns_udp, dns_tcp, {one.getsockname()[1]: one for one in listeners}, open_more)

    async def add_ports(self, ports: Collection[int]) -> Mapping[int, socket.socket]:
        """Listen on those of these ports that have no listener yet, up to :data:`MAX_PORTS` in all; returns the new.

        Raises :class:`~agentos.sandbox.errors.SandboxError` if the jail has ended, and its subclass ``StepFailed`` if
        a program in the jail has one of the ports; then none is added.
        """
        new = [port for port in choose_ports([*self.ports, *ports]) if port not in self.ports]
        new = new[: MAX_PORTS - len(self.ports)]
        found = dict(zip(new, await self._open([("tcp", _ANY, port) for port in new]), strict=True)) if new else {}
        self.ports.update(found)
        return found

    def close(self) -> None:
        for one in (self.proxy, self.dns_udp, self.dns_tcp, *self.ports.values()):
            one.close()


ServeNetwork = Callable[[FilteredNetwork, Caller], Awaitable[None]]
"""Serves a jail's filtered network until cancelled."""
