"""Deferred calls: calls that wait for their result without a task of their own.

A task costs more than a short call itself; see docs/decisions/0059-deferred-calls.md.
"""

import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field
from outcome import Error, Outcome

from agentos_sdk.errors import Cancelled, PermissionDenied
from agentos_sdk.frames import Frame

from .call import Call, Gone
from .call_counts import OK, outcome_of
from .caller import Caller
from .poller import Poller
from .ports import MustAsk
from .prepared import Prepared, Record, note_refusal, require
from .replies import encode_reply
from .request_body import read
from .socket_writer import SocketWriter

if TYPE_CHECKING:
    from .table import Syscall

WITHDRAWN = "withdrawn by its caller"

Result = Outcome[Any]
Done = Callable[[Result], object]
Withdraw = Callable[[], bool]
Begin = Callable[[Done], Withdraw]
"""Begins an act that passes its result to ``Done`` later. The returned function withdraws the act.

That function returns False if it is too late; otherwise no result comes.
"""
Answer = Callable[[bytes], object]
Begun = bytes | Callable[[], object]
Defer = Callable[[Caller, bytes, Answer], Begun]
"""Begins a call. Returns the reply, or a function that withdraws the call; then ``Answer`` gets the reply later."""


def deferred_entry(syscall: "Syscall") -> Defer:
    """The entry of a table for a deferred call: it prepares, requires and begins it, and records the outcome later.

    Raises :class:`~agentos.kernel.ports.MustAsk` for what a person must approve.
    """
    request, verbatim, prepare, op = syscall.request, syscall.verbatim, syscall.prepare, int(syscall.op)
    assert request is not None, "a deferred call has a request"
    assert prepare is not None, "and is prepared"
    recorded = syscall.audit != "none"

    def begin(caller: Caller, body: bytes, answer: Answer) -> Begun:
        record: Record | None = None

        def end(result: Result) -> None:
            answer(encode(result))

        def withdraw() -> None:
            if drop():
                end(Error(Cancelled(WITHDRAWN)))

        def encode(result: Result) -> bytes:
            outcome = OK
            try:
                reply = encode_reply(result.unwrap())
                caller.counts.ok[op] += 1
            except Exception as error:
                outcome = outcome_of(error)
                reply = syscall.fail(caller, error)
            if record is not None and recorded:
                caller.audit.note(record.entry("outcome", outcome))
            return reply

        try:
            try:
                prepared: Prepared = prepare(caller, read(request, body, verbatim))
            except PermissionDenied as error:
                note_refusal(caller, syscall.op.name, error)
                raise
            allowed = require(caller, prepared)
            if allowed.must_ask:
                raise MustAsk
            record = allowed
            if prepared.error is not None:
                raise prepared.error
            drop: Withdraw = prepared.act(caller)(end)
        except MustAsk:
            raise
        except Exception as error:
            return encode(Error(error))
        return withdraw

    return begin


async def wait(begin: Begin) -> object:
    """Begin an act, and wait for its result in this task."""
    drop = begin(partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))

    def abort(_: object) -> trio.lowlevel.Abort:
        return trio.lowlevel.Abort.SUCCEEDED if drop() else trio.lowlevel.Abort.FAILED

    return await trio.lowlevel.wait_task_rescheduled(abort)


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

    def add(self, request: Frame, begin: Defer, reserved: int) -> bool:
        """Queue a call to begin in its turn; False if its number is 0 or in use, or the allowance has no room.

        ``reserved`` bytes of its body are counted in the allowance already.
        """
        number, _, body = request
        if not number or number in self._calls or not self._caller.allowance.has_room:
            return False
        call = self._calls[number] = Deferred()
        self._caller.activity.begin_wait()
        self._caller.allowance.begin(len(body), reserved)
        self._poller.defer(self._caller, partial(self._begin, call, request, begin))
        return True

    def _begin(self, call: Deferred, request: Frame, begin: Defer) -> None:
        _, op, body = request
        try:
            if call.cancelled or self.over:
                begun: Begun = self._caller.table.syscalls[op].fail(self._caller, Cancelled(WITHDRAWN))
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
        if not self._writer.is_empty:
            self._poller.wake(self._socket.fileno())  # the connection's task sends the rest

    def _end(self, request: Frame) -> None:
        number, _, body = request
        del self._calls[number]
        self._caller.activity.end_wait()
        self._caller.allowance.end(len(body))
        if self._answered is not None:
            self._answered.set()

    async def wait_answered(self) -> None:
        """Wait until no call is in flight. Only for version 1, which answers in order."""
        while self._calls:
            self._answered = trio.Event()
            await self._answered.wait()
        self._answered = None
