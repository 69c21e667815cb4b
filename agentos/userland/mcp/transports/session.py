"""Session: the connections to the kernel by which one MCP client acts, as the guest ``mcp:NAME``."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol

import trio
from attrs import define, field

from agentos.threads import run_in_thread
from agentos_sdk import connect
from agentos_sdk.client import Kernel
from agentos_sdk.errors import CallError, ConnectionFailed, Unavailable

log = logging.getLogger(__name__)

APPROVAL_TIMEOUT = 30.0  # seconds that a call waits for a person; many MCP clients give up after 60
EVENTS_PAUSE = 0.1  # seconds between two announcements of changes, however many events there are
RECONNECT_PAUSE = 1.0  # seconds
EVERYTHING = "AGENT_*"  # events of any type may have been missed


class Entry(Protocol):
    """What the operator has set for one client; see :mod:`agentos.userland.mcp.clients`."""

    @property
    def guest(self) -> str:
        """The name of its guest, ``mcp:NAME``."""

    @property
    def transport(self) -> str: ...

    @property
    def level(self) -> str | None: ...

    @property
    def permissions(self) -> Mapping[str, Any] | None: ...

    @property
    def elicitation(self) -> str: ...


class Revoked(Exception):
    """The operator has revoked the client's entry: nothing is done for it any more."""


Announce = Callable[[str], Awaitable[None]]
"""Takes the type of an event about an agent that the session may see, or :data:`EVERYTHING`."""


@define(eq=False)
class Session:
    """One client's connections: as its guest, for all that it does, and as the operator, for questions about it.

    A connection is made when it is first used, and again after the kernel was restarted. ``is_current`` says whether
    the entry is as it was; it blocks, and is called in a thread before each use.
    """

    entry: Entry
    is_current: Callable[[], bool]
    _guest: "Connection"
    _operator: "Connection"
    _nursery: trio.Nursery
    _is_watched: bool = False

    @property
    def decides(self) -> bool:
        """Whether an answer in the client's own window decides an approval."""
        return self.entry.elicitation == "decides" and self.entry.transport == "stdio"

    async def guest(self) -> Kernel:
        """The connection of the client's guest. Raises :class:`Revoked`, or what connecting raises."""
        await self._check()
        return await self._guest.open()

    async def operator(self) -> Kernel:
        """The operator's connection: for EXPLAIN about this guest, DECIDE and APPROVALS, never for what a tool does."""
        await self._check()
        return await self._operator.open()

    async def _check(self) -> None:
        """Raise :class:`Revoked` if the operator has revoked the client; then its connections end."""
        try:
            if not await run_in_thread(self.is_current):
                self._nursery.cancel_scope.cancel()
        except OSError as error:
            raise Unavailable(f"whether this client was revoked can't be read: {error}") from None
        if self._nursery.cancel_scope.cancel_called:
            raise Revoked(f"the operator has revoked this client ({self.entry.guest}): ask for a new entry")

    async def watch(self, announce: Announce) -> None:
        """Have changes of agents announced from now on, until the session ends; further calls do nothing.

        Raises :class:`Revoked`.
        """
        await self._check()
        if not self._is_watched:
            self._is_watched, begun = True, trio.Event()
            self._nursery.start_soon(self._watch, announce, begun)
            await begun.wait()

    async def _watch(self, announce: Announce, begun: trio.Event) -> None:
        """Announce events of agents until the session ends, over all its connections."""
        try:
            while True:
                try:
                    await self._follow(announce, begun)
                except (ConnectionFailed, StopAsyncIteration) as error:
                    log.info("%s: changes of agents aren't announced for now: %s", self.entry.guest, error)
                begun.set()
                await trio.sleep(RECONNECT_PAUSE)
        except (CallError, Revoked) as error:  # its rights don't allow it
            log.info("%s: changes of agents aren't announced: %s", self.entry.guest, error)
        finally:
            begun.set()

    async def _follow(self, announce: Announce, begun: trio.Event) -> None:
        """Announce events of one connection, at most ten times a second, and each type once at a time."""
        async with (await self.guest()).follow_events([EVERYTHING]) as events:
            if begun.is_set():  # another connection before this one has ended
                await announce(EVERYTHING)
            begun.set()
            while True:
                kinds = {(await anext(events)).type}
                with trio.move_on_after(EVENTS_PAUSE):
                    while True:
                        kinds.add((await anext(events)).type)
                for kind in sorted(kinds):
                    await announce(kind)


@define(eq=False)
class Connection:
    """A connection that is made when it is needed."""

    connect: Callable[[], AbstractAsyncContextManager[Kernel]]
    nursery: trio.Nursery
    _kernel: Kernel | None = None
    _connecting: trio.Lock = field(factory=trio.Lock)

    async def open(self) -> Kernel:
        """The present connection, or a new one. Raises ``ConnectionFailed``, or the ``CallError`` of HELLO."""
        async with self._connecting:
            if self._kernel is None or not self._kernel.is_connected:
                self._kernel = await self.nursery.start(self._keep)
            return self._kernel

    async def _keep(self, task_status: trio.TaskStatus[Kernel]) -> None:
        async with self.connect() as kernel:
            task_status.started(kernel)
            await kernel.wait_disconnected()


@asynccontextmanager
async def open_session(
    entry: Entry,
    socket_path: str | None = None,
    is_current: Callable[[], bool] = lambda: True,
    approval_timeout: float = APPROVAL_TIMEOUT,
) -> AsyncIterator[Session]:
    """The session of a client, which ends with this block.

    ``approval_timeout``: seconds that a call waits for a person. Where the client's own answer decides, none waits.
    """
    timeout = 0.0 if entry.elicitation == "decides" and entry.transport == "stdio" else approval_timeout
    rights: dict[str, Any] = {"level": entry.level} if entry.permissions is None else {"permissions": entry.permissions}
    as_guest = partial(connect, socket_path, name=entry.guest, approval_timeout=timeout, **rights)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        connections = await nursery.start(_keep_nursery)
        guest, operator = Connection(as_guest, connections), Connection(partial(connect, socket_path), connections)
        try:
            yield Session(entry, is_current, guest, operator, connections)
        except Exception as error:  # raised below: the nursery would wrap it in a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _keep_nursery(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """A nursery that can be cancelled without the block of the session."""
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()
