"""Dispatch tables: the handler and body limit of each opcode, per caller, built before a frame arrives."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any

import trio
from msgspec import Struct

from agentos_sdk.calls.background import Accepted
from agentos_sdk.errors import UnknownCall
from agentos_sdk.opcodes import Op, op_name

from .call import Call, Gone
from .caller import Caller
from .deferred import Defer
from .drivers import at_once, by_callback, in_turn
from .ports import Decision, MustAsk
from .steps import Observe, Serve, build_steps
from .syscall import SMALL_BODY_BYTES, Syscall
from .wire import connection_calls
from .wire.replies import encode_error, encode_in_turns, encode_reply
from .wire.request_body import Reader, read

MAX_RECORDED_BYTES = 300  # bytes of a refused call's body that the audit log records

Now = Callable[[Caller, bytes], bytes]
Later = Callable[[Call, bytes], Awaitable[bytes]]
InTurns = Callable[[Caller, bytes], Awaitable[bytes]]


class Entry(Struct, frozen=True):
    """How an opcode is answered; the connection tries the ways in this order.

    ``now`` answers while input is read. ``soon`` does, too, or begins what waits without a task; ``begin`` begins that
    when other connections have been read. ``turns`` answers in the order of
    the requests, like ``now``, but lets other tasks run meanwhile: calls that are ``in_order``, and bodies above
    :data:`~agentos.kernel.wire.request_body.MAX_INLINE_BYTES`. ``later`` answers in a task. Those before it raise
    :class:`~agentos.kernel.ports.MustAsk` for what a person must approve, and ``later`` asks.
    """

    now: Now | None = None
    soon: Defer | None = None
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

    ``observe`` is told of every call that has ended, unless its request could not be read.
    """

    __slots__ = ("entries", "limits", "observe", "reader", "served", "syscalls")

    def __init__(self, syscalls: Iterable[Syscall], observe: Observe | None = None) -> None:
        self.observe = observe
        self.syscalls: dict[int, Syscall] = {}  # by opcode
        self.limits = [SMALL_BODY_BYTES] * 256
        self.entries: list[Entry] = [_unknown(number) for number in range(256)]
        self.served: dict[Op, Serve] = {}
        self.reader = Reader()
        for syscall in syscalls:
            self.syscalls[syscall.op] = syscall
            self.limits[syscall.op] = syscall.limit
            alone, self.served[syscall.op] = build_steps(syscall, observe)
            self.entries[syscall.op] = self._entry(syscall, alone)
        for op in connection_calls.OPS:
            self.entries[op] = AtOnce()

    def _entry(self, syscall: Syscall, alone: Serve) -> Entry:
        finish, direct = _finish(syscall, alone), self.observe is None
        later = _later(syscall, _finish(syscall, self.served[syscall.op]), self.reader)
        if syscall.deferred:
            begin = _inline(syscall, finish, by_callback)
            if syscall.in_order:
                return Waits(soon=begin, turns=_in_turns(syscall, finish, self.reader, in_turn), later=later)
            return Waits(begin=begin, later=later)
        if syscall.waits:
            return Waits(later=later)
        if syscall.request is None:  # its handler counts, and returns bytes
            return AtOnce(syscall.handler if direct else lambda caller, body: at_once(alone(caller, body)))
        turns = _in_turns(syscall, finish, self.reader)
        if syscall.in_order:
            return AtOnce(turns=turns, later=later)
        plain = direct and syscall.prepare is None
        return AtOnce(_direct(syscall) if plain else _inline(syscall, finish, at_once), turns=turns, later=later)

    async def perform(self, op: Op, call: Call, request: object) -> object:
        """Serve a call that a gateway has parsed, with the same checks and audit entries; returns the unencoded reply.

        Not for calls whose request is raw bytes. Raises ``CallError``.
        """
        if op not in self.served:
            raise UnknownCall(f"this kernel has no call {op.name}")
        counts = call.caller.counts
        try:
            reply = await self.served[op](call.caller, request, call)
        except BaseException as error:
            counts.fail(op, error)
            raise
        counts.ok[op] += 1
        return reply

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
        error, observe = decision.refusal, self.observe
        reply = self.encode_failure(op, error)

        def refuse(caller: Caller, body: bytes) -> bytes:
            about = body[:MAX_RECORDED_BYTES].decode(errors="replace")  # not parsed, but the attempt is worth recording
            caller.audit.note(caller.entry(op.name, about, decision, "outcome", error.code))
            caller.counts.fail(op, error)
            if observe is not None:
                observe(caller, op, None, error, time.time_ns())
            return reply

        async def refuse_later(call: Call, body: bytes) -> bytes:  # the call was allowed when it arrived
            return refuse(call.caller, body)

        return Denied(refuse, later=refuse_later)

    def encode_failure(self, op: int, error: BaseException) -> bytes:
        """The body of a failed reply to this opcode, whether it is served or not."""
        syscall = self.syscalls.get(op)
        return syscall.encode_failure(error) if syscall is not None else encode_error(error)


def _unknown(number: int) -> Entry:
    error = UnknownCall(f"this kernel has no call {op_name(number)}")
    reply = encode_error(error)

    def refuse(caller: Caller, body: bytes) -> bytes:
        caller.counts.fail(number, error)
        return reply

    return Denied(refuse)


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


def _inline(syscall: Syscall, finish: Serve, drive: Callable[..., Any]) -> Callable[..., Any]:
    """Read a request while input is read, and have ``drive`` run its steps."""
    request, verbatim = syscall.request, syscall.verbatim
    assert request is not None, "raw bytes aren't read"

    def reply(caller: Caller, body: bytes, *answer: Callable[[bytes], object]) -> Any:
        try:
            asked: Any = read(request, body, verbatim)
        except Exception as error:
            return syscall.fail(caller, error)
        return drive(finish(caller, asked), *answer)

    return reply


async def _await(steps: Awaitable[bytes]) -> bytes:
    return await steps


def _in_turns(
    syscall: Syscall, finish: Serve, reader: Reader, drive: Callable[..., Awaitable[bytes]] = _await
) -> InTurns:
    async def reply(caller: Caller, body: bytes) -> bytes:
        try:
            request = await syscall.read(caller, body, reader)
        except Exception as error:
            return syscall.fail(caller, error)
        return await drive(finish(caller, request))

    return reply


def _later(syscall: Syscall, finish: Serve, reader: Reader) -> Later:
    background = syscall.background

    async def reply(call: Call, body: bytes) -> bytes:
        try:
            request = await syscall.read(call.caller, body, reader)
            if background is not None and request.async_:
                answer = partial(finish, call.caller, request)
                number = background.start(call, syscall.op, request.request_id, len(body), answer)
                return encode_reply(Accepted(request_id=number))
        except Exception as error:
            return syscall.fail(call.caller, error)
        encoded: bytes = await finish(call.caller, request, call)
        return encoded

    return reply


def _finish(syscall: Syscall, serve: Serve) -> Serve:
    """Run the steps, encode the reply, and count the call by how it has ended."""
    op, encode = int(syscall.op), syscall.encode

    async def finish(caller: Caller, request: Any, call: Call | None = None) -> bytes:
        try:
            answered = await serve(caller, request, call)
            if call is None:
                reply = encode_reply(answered)
            else:
                reply = await (encode_in_turns(answered) if encode is None else encode(caller, answered))
        except MustAsk:
            raise
        except (Gone, trio.Cancelled) as error:
            caller.counts.fail(op, error)
            raise
        except Exception as error:
            return syscall.fail(caller, error)
        caller.counts.ok[op] += 1
        return reply

    return finish
