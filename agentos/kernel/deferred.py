"""Deferred calls: calls that wait for their result without a task of their own.

A task costs more than a short call itself; see docs/decisions/performance/0059-deferred-calls.md.
"""

import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from agentos_sdk.errors import Cancelled
from agentos_sdk.frames import Frame

from .call import Call, Gone
from .caller import Caller
from .drivers import WITHDRAWN
from .ports import MustAsk
from .wire.poller import Poller
from .wire.socket_writer import SocketWriter

if TYPE_CHECKING:
    from .table import Entry

Begun = bytes | Callable[[], object]
Defer = Callable[[Caller, bytes, Callable[[bytes], object]], Begun]
"""Begins a call. Returns the reply, or a function that withdraws the call; then the argument gets the reply later."""


@define(eq=False)
class Deferred:
    """A call in flight without a task. ``withdraw`` is set once it has begun."""

    cancelled: bool = False
    withdraw: Callable[[], object] | None = None
    input: None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self.withdraw is not None:
            self.withdraw()


@define(eq=False)
class DeferredCalls:
    """The deferred calls of one connection; ``calls`` are all that it has in flight.

    ``asked`` are requests that a person has to approve, which need a task. ``over``: the connection sends no more
    replies.
    """

    _caller: Caller
    _socket: socket.socket
    _writer: SocketWriter
    _poller: Poller
    _calls: dict[int, Call | Deferred]
    asked: list[Frame] = field(factory=list)
    over: bool = False
    _answered: trio.Event | None = None

    def begin(self, request: Frame, entry: "Entry", reserved: int) -> bytes | None:
        """Begin a call, or have it begin in its turn; None if its reply comes later. Its number is free.

        ``reserved`` bytes of its body are counted in the allowance already. Raises ``MustAsk``, also without room.
        """
        number, _, body = request
        begin, call = entry.begin, Deferred()
        if begin is None or not self._caller.allowance.has_room:
            raise MustAsk
        if entry.turns is None:
            self._poller.defer(self._caller, partial(self._begin, call, request, begin))
        else:
            begun = begin(self._caller, body, partial(self._answer, request))
            if isinstance(begun, bytes):
                return begun
            call.withdraw = begun
        self._calls[number] = call
        self._caller.activity.waiting += 1
        self._caller.allowance.take(len(body) - reserved, calls=1)
        return None

    def _begin(self, call: Deferred, request: Frame, begin: Defer) -> None:
        _, op, body = request
        try:
            if call.cancelled or self.over:
                begun: Begun = self._caller.table.withdraw(self._caller, op, body, Cancelled(WITHDRAWN))
            else:
                begun = begin(self._caller, body, partial(self._answer, request))
        except MustAsk:
            self._end(request)
            self.asked.append(request)
            self._poller.wake(self._socket.fileno())
            return
        if isinstance(begun, bytes):
            self._answer(request, begun)
        else:
            call.withdraw = begun

    def _answer(self, request: Frame, reply: bytes) -> None:
        number, op, _ = request
        self._end(request)
        if self.over:
            return
        with contextlib.suppress(Gone):  # then the poller finds that the peer has closed the connection
            self._writer.reply(number, op, reply)
        if self._writer.unsent:
            self._poller.wake(self._socket.fileno())  # the connection's task sends the rest

    def _end(self, request: Frame) -> None:
        number, _, body = request
        del self._calls[number]
        self._caller.activity.end_wait()
        self._caller.allowance.give_back(len(body), calls=1)
        if self._answered is not None:
            self._answered.set()

    async def wait_answered(self) -> None:
        """Wait until no call is in flight. Only for version 1, which answers in order."""
        while self._calls:
            self._answered = trio.Event()
            await self._answered.wait()
        self._answered = None
