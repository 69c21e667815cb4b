"""Programs in the kernel's process, such as the dashboard, which use it by system calls as its operator."""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from attrs import define

from agentos.access.callers import Callers
from agentos.kernel.caller import Caller
from agentos.kernel.internal_errors import internal
from agentos.kernel.wire.listener import ConnectionLimit, serve_connection
from agentos.kernel.wire.poller import Poller
from agentos.services.http.egress import Egress

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

    from agentos.http.users import FindUser

SEND_TIMEOUT = 20.0  # seconds; strangers, too, connect to a port, and may read nothing


@define(eq=False)
class ProgramHost:
    """The kernel's interface for a program: connections to the kernel, and a server for its listening sockets."""

    callers: Callers
    poller: Poller
    connection_limit: ConnectionLimit
    egress: Egress
    dismiss: Callable[[Caller], None]
    find_user: "FindUser"

    @asynccontextmanager
    async def connect(self, name: str, link_set: str | None = None) -> AsyncIterator[socket.socket]:
        """Open a connection to the kernel for the time of the block; yields the program's end.

        It is the operator's, or with the name of one of ``LINK_SETS`` a guest's. ``name`` is the caller's in the audit
        log.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with ours, theirs:
            if link_set is None:
                caller = self.callers.admit_operator(os.geteuid(), name)
            else:
                caller = self.callers.admit_link(os.geteuid(), name, link_set)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_connection, ours, caller, self.connection_limit, self.poller, self.dismiss)
                yield theirs
                nursery.cancel_scope.cancel()

    async def serve_http(self, listener: socket.socket, app: "ASGIFramework", name: str) -> None:
        """Serve an ASGI application and its WebSockets until cancelled. Agents can't connect to the listener."""
        from agentos.http.server import HTTPListener  # hypercorn: 0.1 s and 20 MiB, loaded only if needed

        caller = self.callers.admit_operator(os.geteuid(), name)
        try:
            with self.egress.refuse(listener):
                await HTTPListener(listener, self.connection_limit, caller, app, SEND_TIMEOUT, self.find_user).serve()
        finally:
            self.callers.dismiss(caller)

    async def run(self, program: "Program") -> None:
        """Run a program. If it fails, the error is logged, and the kernel and its agents go on."""
        try:
            await program(self)
        except Exception as bug:
            internal(bug, f"the program {program!r}, which it ended")


Program = Callable[[ProgramHost], Awaitable[None]]
