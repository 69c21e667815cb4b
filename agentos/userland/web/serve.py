"""Starts the dashboard in the kernel's process: finds a port, loads the sessions, prints the link."""

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
from .feed import Feeds
from .links import DIRECTORY, make_link, publish_url
from .page_files import PageFiles
from .sessions import Sessions

log = logging.getLogger(__name__)

DEFAULT_PORT = 8000
NEXT_PORTS = 20  # tried, from the default one on
BACKLOG = 128


class Host(Protocol):
    """The kernel's interface for a program in its process."""

    def connect(self, name: str) -> AbstractAsyncContextManager[socket.socket]: ...
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


def open_listener(options: DashboardOptions) -> socket.socket:
    """The listening socket. Raises :class:`DashboardError`."""
    ports = range(DEFAULT_PORT, DEFAULT_PORT + NEXT_PORTS) if options.port is None else [options.port]
    try:
        family, *_, (host, *_) = socket.getaddrinfo(options.host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise DashboardError(f"dashboard: {options.host!r} is no address of this host: {error.strerror}") from None
    if not ip_address(host).is_loopback and not options.insecure:
        raise DashboardError(
            f"dashboard: {options.host} is not a loopback address, and the dashboard has no TLS: a reader of its"
            " traffic could act as the operator. Put a reverse proxy with TLS before it, or say --insecure-listen"
        )
    refused = ""
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            refused = f"dashboard: can't listen on {options.host}:{port}: {error.strerror}"
        else:
            return listener
    raise DashboardError(f"{refused}: choose another with `listen` in [dashboard]")


@frozen
class Program:
    """The dashboard as a program of the kernel. ``announce`` is called with where it is.

    ``with_link``: with a link that logs in any reader of it.
    """

    listener: socket.socket
    options: DashboardOptions
    kernel_id: str
    state_dir: Path
    announce: Callable[[str], None]
    with_link: bool

    async def __call__(self, host: Host) -> None:
        address = _host(self.listener)
        url = f"http://{address}:{self.listener.getsockname()[1]}"
        with self.listener, ExitStack() as held:
            try:
                state = held.enter_context(hold_directory(self.state_dir))
                place = held.enter_context(hold_directory(state / DIRECTORY))
                sessions = await run_in_thread(Sessions.load, place)
                files = await run_in_thread(PageFiles.load)
                await run_in_thread(held.enter_context, publish_url(place, url))
                if self.with_link:
                    link = await run_in_thread(make_link, url, self.state_dir, "unrestricted")
                    shown = f"{link} (good once, for 10 minutes; `agentos dashboard` prints another)"
                else:
                    shown = f"{url} (`agentos dashboard` prints a link that logs in)"
            except OSError as error:
                log.error("there is no dashboard: %s", describe_error(error, self.state_dir / DIRECTORY))
                return
            feeds = Feeds(host.connect, os.urandom(4).hex(), checks(self.state_dir))
            app = Dashboard(self.kernel_id, sessions, feeds, files).build([*self.options.allowed_hosts, address])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feeds.serve)
                self.announce(f"dashboard: {shown}")
                await host.serve_http(self.listener, app, "web")


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
