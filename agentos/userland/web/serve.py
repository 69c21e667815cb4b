"""Starts the dashboard in the kernel's process: finds a port, loads the sessions, prints the link."""

import errno
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

import trio
from attrs import frozen

from agentos.private_files import describe_error, hold_directory
from agentos.threads import run_in_thread

from .app import Dashboard
from .control import open_control, serve_control
from .feed import Feeds
from .guard import name_run
from .links import DIRECTORY, make_link, publish_url
from .page_files import PageFiles
from .recordings import Recordings
from .sessions import Sessions

log = logging.getLogger(__name__)

DEFAULT_PORT = 8000
NEXT_PORTS = 20  # tried, from the default one on
BACKLOG = 128
# Where a link's name leads, too: without a listener there another program could get at it.
OTHER_FAMILY = {"127.0.0.1": "::1", "::1": "127.0.0.1", "0.0.0.0": "::1", "::": "0.0.0.0"}


class Host(Protocol):
    """The kernel's interface for a program in its process."""

    def connect(self, name: str, link_set: str | None = None) -> AbstractAsyncContextManager[socket.socket]: ...
    def serve_http(self, listener: socket.socket, app: Any, name: str) -> Awaitable[None]: ...


@frozen
class DashboardOptions:
    """Where to listen. ``port`` None: 8000 or one of the next, 0: any free one. ``allowed_hosts``: names of a proxy.

    ``insecure``: also on another address than the loopback's, though there is no TLS.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    allowed_hosts: Sequence[str] = ()
    insecure: bool = False


class DashboardError(Exception):
    """The dashboard can't be served; the text says why and what to do."""


def open_listeners(options: DashboardOptions) -> Sequence[socket.socket]:
    """The listening sockets, at one port. Raises :class:`DashboardError`.

    Of the loopback they are of both families: of a name below ``localhost`` a browser tries ::1 first, and another
    program that listens there would get the link.
    """
    if options.port is None:
        ports: Sequence[int] = range(DEFAULT_PORT, DEFAULT_PORT + NEXT_PORTS)
    else:
        ports = [options.port] * (1 if options.port else NEXT_PORTS)
    try:
        host = str(socket.getaddrinfo(options.host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise DashboardError(f"dashboard: {options.host!r} is no address of this host: {error.strerror}") from None
    if not ip_address(host).is_loopback and not options.insecure:
        raise DashboardError(
            f"dashboard: {options.host} is not a loopback address, and the dashboard has no TLS: a reader of its"
            " traffic could act as the operator. Put a reverse proxy with TLS before it, or say --insecure-listen"
        )
    for port in ports:
        try:
            return _listen_at_all(host, port)
        except OSError as error:
            refused = f"dashboard: can't listen on {error.filename or options.host}:{port}: {error.strerror}"
    raise DashboardError(f"{refused}: choose another with `listen` in [dashboard]")


def _listen_at_all(host: str, port: int) -> Sequence[socket.socket]:
    """Listen at ``host``, and at what a browser may take for it. Raises ``OSError`` that names the address."""
    with ExitStack() as opened:
        first = opened.enter_context(_listen(host, port))
        listeners = [first]
        if host in OTHER_FAMILY:
            try:
                other = _listen(OTHER_FAMILY[host], first.getsockname()[1])
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                log.info("the dashboard isn't at %s, which this host doesn't have", OTHER_FAMILY[host])
            else:
                listeners.append(other)
        opened.pop_all()
        return listeners


def _listen(host: str, port: int) -> socket.socket:
    """With SO_REUSEADDR, as connections of the last run may linger at the port. Linux shares the port of a socket that
    listens with no other one, whatever either's options, unless both of one uid have SO_REUSEPORT."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"[{host}]" if ":" in host else host) from None
    return listener


@frozen
class Program:
    """The dashboard as a program of the kernel. ``announce`` is called with where it is.

    ``with_link``: with a link that logs in any reader of it.
    """

    listeners: Sequence[socket.socket]
    options: DashboardOptions
    state_dir: Path
    announce: Callable[[str], None]
    with_link: bool

    async def __call__(self, host: Host) -> None:
        run = os.urandom(8).hex()
        address, port = _host(self.listeners[0]), self.listeners[0].getsockname()[1]
        # Where a browser may be led to another listener by a name, or isn't on this host, the link has the address.
        name = name_run(run) if self.listeners[0].getsockname()[0] in OTHER_FAMILY else address
        url = f"http://{name}:{port}"
        with ExitStack() as held:
            for listener in self.listeners:
                held.enter_context(listener)
            try:
                state = held.enter_context(hold_directory(self.state_dir))
                place = held.enter_context(hold_directory(state / DIRECTORY))
                sessions = await run_in_thread(Sessions.load, place, run, self._listens)
                files = await run_in_thread(PageFiles.load)
                await run_in_thread(held.enter_context, publish_url(place, url, run))
                control = held.enter_context(await run_in_thread(open_control, place))
                if self.with_link:
                    link = await run_in_thread(make_link, url, run, self.state_dir, "operator")
                    shown = f"{link} (good once, for 10 minutes; `agentos dashboard` prints another)"
                else:
                    shown = f"http://{address}:{port} (`agentos dashboard` prints a link that logs in)"
            except OSError as error:
                log.error("there is no dashboard: %s", describe_error(error, self.state_dir / DIRECTORY))
                return
            feeds = Feeds(host.connect, run, checks(self.state_dir))
            dashboard = Dashboard(sessions, feeds, files, Recordings(self.state_dir.absolute() / "recordings"))
            app = dashboard.build([*self.options.allowed_hosts, address])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feeds.serve)
                nursery.start_soon(serve_control, control, dashboard.answer)
                for listener in self.listeners:
                    nursery.start_soon(host.serve_http, listener, app, "web")
                self.announce(f"dashboard: {shown}")

    @property
    def _listens(self) -> str:
        return " ".join(sorted(f"{one.getsockname()[0]} {one.getsockname()[1]}" for one in self.listeners))


def checks(state_dir: Path) -> Mapping[str, Sequence[str]]:
    """Commands by which the page *System* examines the host and the audit log, in child processes.

    ``-P``: the processes start in the configuration's directory, and must not import what an agent wrote there.
    """
    agentos = (sys.executable, "-P", "-m", "agentos")
    return {
        "doctor": (*agentos, "doctor", "--json"),
        "verify": (*agentos, "audit", "verify", "--json", "--state-dir", str(state_dir.absolute())),
    }


def _host(listener: socket.socket) -> str:
    """The address in URLs: where it listens, the loopback's if it listens on all."""
    address = ip_address(listener.getsockname()[0])
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"[{address}]" if address.version == 6 else str(address)
