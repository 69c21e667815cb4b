"""Dispatch tables: the handler and body limit of each opcode, per caller, built before a frame arrives."""

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any

from msgspec import Struct

from agentos_sdk.calls.background import Accepted
from agentos_sdk.errors import UnknownCall
from agentos_sdk.opcodes import Op, op_name

from .call import Call
from .caller import Caller
from .deferred import Defer
from .drivers import at_once, by_callback, in_turn
from .ports import Decision
from .steps import Observer, Serve, build_steps
from .syscall import SMALL_BODY_BYTES, Parse, Syscall
from .wire import connection_calls
from .wire.replies import encode_error, encode_reply
from .wire.request_body import MAX_INLINE_BYTES, Reader, read

MAX_RECORDED_BYTES = 300  # bytes of a refused call's body that the audit log records

Now = Callable[[Caller, bytes], bytes]
Later = Callable[[Call, bytes], Awaitable[bytes]]
InTurns = Callable[[Caller, bytes], Awaitable[bytes]]


class Entry(Struct, frozen=True):
    """How an opcode is answered; the connection tries the ways in this order.

    While input is read, ``now`` answers a body of at most ``most`` bytes; or ``begin`` does, or begins what waits
    without a task. Without ``turns`` that is begun when other connections have been read.
    ``turns`` answers in the order of the requests, but lets other tasks run meanwhile: calls that are ``in_order``, and
    bodies above ``most``. ``later`` answers in a task. Those before it raise
    :class:`~agentos.kernel.ports.MustAsk` for what a person must approve, and ``later`` asks.
    """

    most: int = -1
    now: Now | None = None
    begin: Defer | None = None
    turns: InTurns | None = None
    later: Later | None = None


class Denied(Entry, frozen=True):
    """Refused unread."""


class AtOnce(Entry, frozen=True):
    """Answered without a task, unless a person must approve. HELLO, CANCEL and EXIT are: by the connection itself."""


class Waits(Entry, frozen=True):
    """Answered in a task, or without one by the callback that tells the result."""


class Table:
    """One entry per opcode, and the limit of the body.

    ``observer`` is told of every call.
    """

    __slots__ = ("entries", "limits", "observer", "reader", "served", "syscalls")

    def __init__(self, syscalls: Iterable[Syscall], observer: Observer | None = None) -> None:
        self.observer = observer
        self.syscalls: dict[int, Syscall] = {}  # by opcode
        self.limits = [SMALL_BODY_BYTES] * 256
        self.entries: list[Entry] = [_unknown(number, observer) for number in range(256)]
        self.served: dict[Op, Serve] = {}
        self.reader = Reader()
        for syscall in syscalls:
            self.syscalls[syscall.op] = syscall
            self.limits[syscall.op] = syscall.limit
            self.served[syscall.op] = build_steps(syscall, observer)
            self.entries[syscall.op] = self._entry(syscall)
        for op in connection_calls.OPS:
            self.entries[op] = AtOnce()

    def _entry(self, syscall: Syscall) -> Entry:
        serve, parse = self.served[syscall.op], syscall.parser(self.reader)
        observer = self.observer
        later = _later(syscall, serve, parse, observer)
        if syscall.waits:
            return Waits(later=later)
        if syscall.request is None:  # its handler counts, and returns bytes
            return AtOnce(sys.maxsize, _raw(syscall, observer))
        if syscall.deferred:
            turns = _in_turns(syscall, serve, parse, observer, in_turn) if syscall.in_order else None
            return Waits(
                MAX_INLINE_BYTES, begin=_inline(syscall, serve, by_callback, observer), turns=turns, later=later
            )
        turns = _in_turns(syscall, serve, parse, observer)
        if syscall.in_order:
            return AtOnce(turns=turns, later=later)
        plain = observer is None and syscall.prepare is None
        now = _direct(syscall) if plain else _inline(syscall, serve, at_once, observer)
        return AtOnce(MAX_INLINE_BYTES, now, turns=turns, later=later)

    async def perform(self, op: Op, call: Call, request: object) -> object:
        """Serve a call that a gateway has parsed, with the same checks and audit entries; returns the unencoded reply.

        Not for calls whose request is raw bytes. Raises ``CallError``.
        """
        if op not in self.served:
            raise UnknownCall(f"this kernel has no call {op.name}")
        return await self.served[op](call.caller, request, call, encoded=False)

    def with_refusals(self, decisions: Mapping[Op, Decision]) -> "Table":
        """A copy of this table for a caller for which some opcodes are always denied.

        Where a person must approve, the entry stays if it checks rights itself.
        """
        refused = {
            op: decision
            for op, decision in decisions.items()
            if decision.effect == "deny" or self.syscalls[op].prepare is None
        }
        if not refused:
            return self
        table = copy(self)
        table.entries = list(self.entries)
        for op, decision in refused.items():
            table.entries[op] = self._refused(op, decision)
        return table

    def _refused(self, op: Op, decision: Decision) -> Entry:
        error, observer = decision.refusal, self.observer
        reply = self.encode_failure(op, error)

        def refuse(caller: Caller, body: bytes) -> bytes:
            about = body[:MAX_RECORDED_BYTES].decode(errors="replace")  # not parsed, but the attempt is worth recording
            caller.audit.note(caller.entry(op.name, about, decision, "outcome", error.code))
            caller.counts.fail(op, error)
            if observer is not None:
                observer.end(caller, op, body, error, reply, observer.begin(None))
            return reply

        async def refuse_later(call: Call, body: bytes) -> bytes:  # the call was allowed when it arrived
            return refuse(call.caller, body)

        return Denied(sys.maxsize, refuse, later=refuse_later)

    def withdraw(self, caller: Caller, op: int, body: bytes, error: BaseException) -> bytes:
        """Count a call that was withdrawn before it began; returns the body of its reply."""
        return _refuse_unread(self.syscalls[op], self.observer, caller, body, error)

    def encode_failure(self, op: int, error: BaseException) -> bytes:
        """The body of a failed reply to this opcode, whether it is served or not."""
        syscall = self.syscalls.get(op)
        return syscall.encode_failure(error) if syscall is not None else encode_error(error)


def _unknown(number: int, observer: Observer | None) -> Entry:
    def refuse(caller: Caller, body: bytes) -> bytes:
        error = UnknownCall(f"this kernel has no call {op_name(number)}")
        reply = encode_error(error)
        caller.counts.fail(number, error)
        if observer is not None:
            observer.pass_by(caller, number, body, reply)
        return reply

    return Denied(sys.maxsize, refuse)


def _refuse_unread(
    syscall: Syscall, observer: Observer | None, caller: Caller, body: bytes, error: BaseException
) -> bytes:
    reply = syscall.fail(caller, error)
    if observer is not None:
        observer.pass_by(caller, syscall.op, body, reply)
    return reply


def _raw(syscall: Syscall, observer: Observer | None) -> Now:
    """A handler of raw bytes."""
    op, handler = int(syscall.op), syscall.handler
    assert handler is not None, "a call is prepared or handled"
    if observer is None:
        return handler

    def reply(caller: Caller, body: bytes) -> bytes:
        began = observer.begin(None)
        answer: bytes = handler(caller, body)
        observer.end(caller, op, body, answer, answer, began)
        return answer

    return reply


def _direct(syscall: Syscall) -> Now:
    """The direct path of a handler that needs no right and isn't observed."""
    op, request, verbatim, handler = int(syscall.op), syscall.request, syscall.verbatim, syscall.handler
    assert handler is not None, "a call is prepared or handled"
    assert request is not None, "raw bytes are not read"

    def reply(caller: Caller, body: bytes) -> bytes:
        try:
            encoded = encode_reply(handler(caller, read(request, body, verbatim)))
        except Exception as error:
            return syscall.fail(caller, error)
        caller.counts.ok[op] += 1
        return encoded

    return reply


def _inline(syscall: Syscall, serve: Serve, drive: Callable[..., Any], observer: Observer | None) -> Callable[..., Any]:
    """Read a request while input is read, and have ``drive`` run its steps."""
    request, verbatim = syscall.request, syscall.verbatim
    assert request is not None, "raw bytes aren't read"

    def reply(caller: Caller, body: bytes, *answer: Callable[[bytes], object]) -> Any:
        try:
            asked: Any = read(request, body, verbatim)
        except Exception as error:
            return _refuse_unread(syscall, observer, caller, body, error)
        return drive(serve(caller, asked), *answer)

    return reply


def _in_turns(
    syscall: Syscall,
    serve: Serve,
    parse: Parse,
    observer: Observer | None,
    drive: Callable[..., Awaitable[bytes]] | None = None,
) -> InTurns:
    async def reply(caller: Caller, body: bytes) -> bytes:
        try:
            request = await parse(caller, body)
        except Exception as error:
            return _refuse_unread(syscall, observer, caller, body, error)
        steps = serve(caller, request)
        answer: bytes = await (steps if drive is None else drive(steps))
        return answer

    return reply


def _later(syscall: Syscall, serve: Serve, parse: Parse, observer: Observer | None) -> Later:
    background = syscall.background

    async def reply(call: Call, body: bytes) -> bytes:
        try:
            request = await parse(call.caller, body)
            if background is not None and request.async_:
                answer = partial(serve, call.caller, request)
                number = background.start(call, syscall.op, request.request_id, len(body), answer)
                accepted = encode_reply(Accepted(request_id=number))
                if observer is not None:
                    observer.pass_by(call.caller, syscall.op, body, accepted)
                return accepted
        except Exception as error:
            return _refuse_unread(syscall, observer, call.caller, body, error)
        encoded: bytes = await serve(call.caller, request, call)
        return encoded

    return reply
