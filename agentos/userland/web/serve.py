"""Starts the dashboard in the kernel's process: finds a port, loads the sessions, prints the link."""

import json
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

import trio
from attrs import frozen

from agentos.private_files import hold_directory
from agentos.threads import run_in_thread

from .app import Dashboard
from .feed import Feeds
from .links import DIRECTORY, LISTENING, make_link
from .sessions import Sessions

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
            f"dashboard: {options.host} is not a loopback address, and the dashboard has no TLS: whoever reads the"
            " network could act as the operator. Put a reverse proxy with TLS before it, or say --insecure-listen"
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
    """The dashboard as a program of the kernel. ``announce`` is called with the link, which has a start token."""

    listener: socket.socket
    options: DashboardOptions
    kernel_id: str
    state_dir: Path
    announce: Callable[[str], None]

    async def __call__(self, host: Host) -> None:
        with self.listener, hold_directory(self.state_dir) as state, hold_directory(state / DIRECTORY) as place:
            url = f"http://{_authority(self.listener)}"
            sessions = await run_in_thread(Sessions.load, place)
            feeds = Feeds(host.connect, os.urandom(4).hex())
            dashboard = Dashboard(self.kernel_id, sessions, feeds)
            await run_in_thread((place / LISTENING).write_text, json.dumps({"url": url}))
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(feeds.serve)
                    link = await run_in_thread(make_link, url, self.state_dir, "unrestricted")
                    self.announce(f"dashboard: {link} (good once, for 10 minutes; `agentos dashboard` prints another)")
                    await host.serve_http(self.listener, dashboard.build(self.options.allowed_hosts), "web")
            finally:
                with suppress(FileNotFoundError):
                    (place / LISTENING).unlink()


def _authority(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
