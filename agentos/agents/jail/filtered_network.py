"""The kernel's sockets in a jail with ``network = "filtered"``: all that its programs can reach.

The jail's network namespace has a loopback and no other interface. The kernel listens there for a proxy, a DNS stub
and, per port that the agent's rules name, for programs that ignore proxies: the stub answers a name with an address of
its own from :data:`ADDRESSES`, which is routed to loopback.
"""

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Self

from attrs import define, field

from agentos.kernel.caller import Caller
from agentos.permissions.patterns.domains import DEFAULT_PORTS
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.plan import FILTERED_ADDRESSES
from agentos.sandbox.steps import SocketAddress

log = logging.getLogger(__name__)

ADDRESSES = ipaddress.IPv4Network(FILTERED_ADDRESSES)
PROXY_PORT = 880  # below 1024, as DNS: programs in a jail can't bind there
DNS_PORT = 53
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
    return [*dict.fromkeys((*sorted(DEFAULT_PORTS), *sorted(ports)))][:MAX_PORTS]


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
    _report: Callable[[str], None] = field(default=log.warning, repr=False)
    _left_out: Collection[int] = field(default=(), repr=False)  # as last reported

    @classmethod
    def take(
        cls, sockets: Sequence[socket.socket], open_more: Open, report: Callable[[str], None] = log.warning
    ) -> Self:
        """Take the sockets of :func:`addresses`, in that order. ``report`` gets a sentence on ports left out."""
        proxy, dns_udp, dns_tcp, *listeners = sockets
        return cls(proxy, dns_udp, dns_tcp, {one.getsockname()[1]: one for one in listeners}, open_more, report)

    async def add_ports(self, ports: Collection[int]) -> Mapping[int, socket.socket]:
        """Listen on those of these ports that have no listener yet, up to :data:`MAX_PORTS` in all; returns the new.

        A port that a program in the jail has is left out, and tried again the next time. Raises
        :class:`~agentos.sandbox.errors.SandboxError` if the jail has ended.
        """
        missing = [port for port in sorted(ports) if port not in self.ports]
        new = missing[: MAX_PORTS - len(self.ports)]
        try:
            found = await self._listen(new) if new else {}
        except StepFailed:
            found = {}
            for port in new:
                with contextlib.suppress(StepFailed):
                    found.update(await self._listen([port]))
        self.ports.update(found)
        left_out = [port for port in missing if port not in found]
        if left_out and left_out != self._left_out:
            names, taken = ", ".join(map(str, left_out)), f"taken in the jail, or beyond the first {MAX_PORTS}"
            self._report(f"its rules name ports that aren't served: {names} ({taken})")
        self._left_out = left_out
        return found

    async def _listen(self, ports: Sequence[int]) -> dict[int, socket.socket]:
        return dict(zip(ports, await self._open([("tcp", _ANY, port) for port in ports]), strict=True))

    def close(self) -> None:
        for one in (self.proxy, self.dns_udp, self.dns_tcp, *self.ports.values()):
            one.close()


ServeNetwork = Callable[[FilteredNetwork, Caller], Awaitable[None]]
"""Serves a jail's filtered network until cancelled."""
