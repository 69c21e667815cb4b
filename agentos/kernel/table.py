"""Dispatch tables: the handler and body limit of each opcode, per caller, built before a frame arrives."""

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any, Protocol

import trio

from agentos_sdk.calls.background import Accepted
from agentos_sdk.errors import UnknownCall
from agentos_sdk.opcodes import Op, op_name

from . import connection_calls
from .call import Call, Gone
from .caller import Caller
from .deferred import Begun, Defer
from .drivers import at_once, by_callback
from .ports import Decision, MustAsk
from .replies import encode_error, encode_in_turns, encode_reply
from .request_body import Reader, read
from .steps import Observe, Steps, build_steps
from .syscall import SMALL_BODY_BYTES, Syscall

MAX_RECORDED_BYTES = 300  # bytes of a refused call's body that the audit log records

Now = Callable[[Caller, bytes], bytes]
Later = Callable[[Call, bytes], Awaitable[bytes]]
InTurns = Callable[[Caller, bytes], Awaitable[bytes]]


class Finish(Protocol):
    """Serves a request that has been read, and encodes and counts what it came to."""

    def __call__(self, caller: Caller, request: Any, call: Call | None = None) -> Coroutine[Any, Any, bytes]: ...


class Table:
    """One entry per opcode: an immediate handler, a waiting handler, or a refusal; and the limit of the body.

    A call with rights that answers immediately has both handlers: the immediate one raises
    :class:`~agentos.kernel.ports.MustAsk` for what a person must approve, and the waiting one asks.

    ``turns`` answers in the order of the requests, like ``now``, but lets other tasks run meanwhile. It is used for
    calls that are ``in_order``, and for immediate ones above :data:`~agentos.kernel.request_body.MAX_INLINE_BYTES`.
    ``deferred`` begins calls that wait without a task; it too raises ``MustAsk``, and leaves large bodies to ``later``.
    ``observe`` is told of every call that has ended, unless its request could not be read.
    """

    __slots__ = ("deferred", "later", "limits", "now", "observe", "reader", "steps", "syscalls", "turns")

    def __init__(self, syscalls: Iterable[Syscall], observe: Observe | None = None) -> None:
        self.observe = observe
        self.syscalls: dict[int, Syscall] = {}  # by opcode
        self.limits = [SMALL_BODY_BYTES] * 256
        self.now: list[Now | None] = [_unknown(number) for number in range(256)]
        self.later: list[Later | None] = [None] * 256
        self.turns: list[InTurns | None] = [None] * 256
        self.deferred: list[Defer | None] = [None] * 256
        self.steps: dict[Op, Steps] = {}
        self.reader = Reader()
        for syscall in syscalls:
            self.syscalls[syscall.op] = syscall
            self.limits[syscall.op] = syscall.limit
            steps = build_steps(syscall, observe)
            finish = _finish(syscall, steps)
            self.now[syscall.op] = None
            if syscall.waits or syscall.prepare is not None:
                self.steps[syscall.op] = steps
                self.later[syscall.op] = _later(syscall, finish, self.reader)
            if syscall.deferred:
                self.deferred[syscall.op] = _defer(syscall, finish)
            elif not syscall.waits:
                if syscall.request is not None:
                    self.turns[syscall.op] = _in_turns(syscall, finish, self.reader)
                if not syscall.in_order:
                    plain = syscall.prepare is None and observe is None
                    self.now[syscall.op] = _now_plain(syscall) if plain else _now(syscall, steps, finish)
        for op in connection_calls.OPS:
            self.now[op] = None

    async def perform(self, op: Op, call: Call, request: object) -> object:
        """Serve a call that a gateway has parsed, with the same checks and audit entries; returns the unencoded reply.

        Only for calls that may wait or need rights. Raises ``CallError``.
        """
        if op not in self.steps:
            raise UnknownCall(f"this kernel has no call {op.name}")
        counts = call.caller.counts
        try:
            reply = await self.steps[op](call.caller, request, call)
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
        table.now, table.later = list(self.now), list(self.later)
        table.turns, table.deferred = list(self.turns), list(self.deferred)
        for op, decision in refused.items():
            table.now[op] = self._refused(op, decision)
            table.later[op] = table.turns[op] = table.deferred[op] = None
        return table

    def _refused(self, op: Op, decision: Decision) -> Now:
        error, observe = decision.refusal, self.observe
        reply = self.encode_failure(op, error)

        def refuse(caller: Caller, body: bytes) -> bytes:
            about = body[:MAX_RECORDED_BYTES].decode(errors="replace")  # not parsed, but the attempt is worth recording
            caller.audit.note(caller.entry(op.name, about, decision, "outcome", error.code))
            caller.counts.fail(op, error)
            if observe is not None:
                observe(caller, op, None, error, time.time_ns())
            return reply

        return refuse

    def encode_failure(self, op: int, error: BaseException) -> bytes:
        """The body of a failed reply to this opcode, whether it is served or not."""
        syscall = self.syscalls.get(op)
        return syscall.encode_failure(error) if syscall is not None else encode_error(error)


def _unknown(number: int) -> Now:
    error = UnknownCall(f"this kernel has no call {op_name(number)}")
    reply = encode_error(error)

    def refuse(caller: Caller, body: bytes) -> bytes:
        caller.counts.fail(number, error)
        return reply

    return refuse


def _now_plain(syscall: Syscall) -> Now:
    """The direct path of a handler that needs no right and isn't observed."""
    op, request, verbatim, handler = int(syscall.op), syscall.request, syscall.verbatim, syscall.handler
    assert handler is not None, "a call is prepared or handled"
    if request is None:
        raw: Now = handler
        return raw

    def reply(caller: Caller, body: bytes) -> bytes:
        try:
            encoded = encode_reply(handler(caller, read(request, body, verbatim)))
        except Exception as error:
            return syscall.fail(caller, error)
        caller.counts.ok[op] += 1
        return encoded

    return reply


def _now(syscall: Syscall, steps: Steps, finish: Finish) -> Now:
    request, verbatim = syscall.request, syscall.verbatim

    def reply(caller: Caller, body: bytes) -> bytes:
        if request is None:
            return at_once(steps(caller, body))  # type: ignore[arg-type,return-value] # its handler counts, and returns bytes
        try:
            asked = read(request, body, verbatim)
        except Exception as error:
            return syscall.fail(caller, error)
        return at_once(finish(caller, asked))

    return reply


def _defer(syscall: Syscall, finish: Finish) -> Defer:
    request, verbatim = syscall.request, syscall.verbatim
    assert request is not None, "a deferred call has a request"

    def begin(caller: Caller, body: bytes, answer: Callable[[bytes], object]) -> Begun:
        try:
            asked = read(request, body, verbatim)
        except Exception as error:
            return syscall.fail(caller, error)
        return by_callback(finish(caller, asked), answer)

    return begin


def _in_turns(syscall: Syscall, finish: Finish, reader: Reader) -> InTurns:
    async def reply(caller: Caller, body: bytes) -> bytes:
        try:
            request = await syscall.read(caller, body, reader)
        except Exception as error:
            return syscall.fail(caller, error)
        return await finish(caller, request)

    return reply


def _later(syscall: Syscall, finish: Finish, reader: Reader) -> Later:
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
        return await finish(call.caller, request, call)

    return reply


def _finish(syscall: Syscall, steps: Steps) -> Finish:
    """Run the steps, encode the reply, and count the call by how it has ended."""
    op, encode = int(syscall.op), syscall.encode

    async def finish(caller: Caller, request: Any, call: Call | None = None) -> bytes:
        try:
            answered = await steps(caller, request, call)
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
