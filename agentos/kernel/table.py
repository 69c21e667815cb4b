"""Dispatch tables: the handler and body limit of each opcode, per caller, built before a frame arrives."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from functools import partial
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction, unwrap
from typing import Any, Literal

import trio
from msgspec import Struct
from msgspec.structs import replace

from agentos_sdk.calls.background import Accepted
from agentos_sdk.errors import PermissionDenied, UnknownCall
from agentos_sdk.opcodes import Op, op_name

from . import connection_calls
from .asking import approve, ask_and_repeat
from .background import Background
from .call import Call, Gone
from .call_counts import outcome_of
from .caller import Caller
from .deferred import Defer, deferred_entry, wait
from .observed import Observe, observe_answer, observe_perform
from .ports import Decision, MustAsk
from .prepared import Prepared, Record, note_refusal, require
from .replies import encode_error, encode_in_turns, encode_reply
from .request_body import Reader, read

SMALL_BODY_BYTES = 256 << 10  # bytes; default limit of a body
LARGE_BODY_BYTES = 1 << 20
MAX_RECORDED_BYTES = 300  # bytes of a refused call's body that the audit log records

Now = Callable[[Caller, bytes], bytes]
Later = Callable[[Call, bytes], Awaitable[bytes]]
InTurns = Callable[[Caller, bytes], Awaitable[bytes]]
Perform = Callable[[Call, Any], Awaitable[object]]


class Syscall(Struct, frozen=True):
    """One system call: its opcode, the type of its request, and its ``prepare`` or, if it needs no right, its handler.

    ``prepare`` takes ``(caller, request)``, has no effects and gives a :class:`~agentos.kernel.prepared.Prepared`. A
    ``def`` returns it, and the call is answered while input is read. An async context manager yields it: the call runs
    in a task, and what the context manager holds is released before the reply is sent.

    A ``def`` handler takes ``(caller, request)`` and answers while input is read; an ``async def`` takes ``(call,
    request)`` and runs in a task. Replies are values that :func:`agentos_sdk.codec.encode` takes, or encoded bytes.

    With ``request=None`` the request is the raw bytes, or what ``parse`` makes of them. A ``def`` handler of raw bytes
    counts the call itself.

    ``omittable`` are fields that EXPLAIN need not be given, with a value for each. ``encode`` makes the bytes of the
    reply. ``limit`` is the largest body in bytes; ``failure`` holds the keys of a failed reply besides ``success``,
    ``error`` and ``code``. Fields in ``verbatim`` are JSON that is passed on unchanged, as ``msgspec.Raw``.

    ``audit`` selects what the audit log records besides refusals: nothing, the outcome, or also the intent before
    anything is done. ``charge`` is called first, and not for EXPLAIN: it takes a token of a rate limit or refuses.

    ``in_order``: the handler, or ``act``, is an ``async def`` of the caller without a task. Other connections are
    served while it works, but its own connection answers nothing else until it has returned. ``takes_chunks``: the
    client may send it CHUNK frames while it is in flight. ``background`` runs requests that have ``async_`` set.

    ``deferred``: ``prepare`` is a ``def``, and its ``act`` returns a :data:`~agentos.kernel.deferred.Begin`. So the
    call waits without a task, which costs more than all that a short call does.
    """

    op: Op
    request: type | None
    handler: Callable[[Any, Any], Any] | None = None
    prepare: Callable[[Caller, Any], Any] | None = None
    limit: int = SMALL_BODY_BYTES
    failure: Mapping[str, object] = {}
    verbatim: Collection[str] = ()
    parse: Callable[[Caller, bytes], Awaitable[Any]] | None = None
    encode: Callable[[Caller, Any], Awaitable[bytes]] | None = None
    omittable: Mapping[str, object] = {}
    audit: Literal["none", "outcome", "intent"] = "none"
    charge: Callable[[Caller], None] | None = None
    in_order: bool = False
    takes_chunks: bool = False
    background: Background | None = None
    deferred: bool = False

    @property
    def waits(self) -> bool:
        """Whether the call may wait and gets a task."""
        if self.prepare is not None:
            return isasyncgenfunction(unwrap(self.prepare))
        return iscoroutinefunction(self.handler) and not self.in_order

    @asynccontextmanager
    async def preview(self, caller: Caller, request: Any) -> AsyncIterator[Prepared]:
        """What the request would do, which is held meanwhile; nothing is done. Raises what ``prepare`` raises."""
        assert self.prepare is not None, "the call needs rights"
        if not self.waits:
            yield self.prepare(caller, request)
            return
        async with self.prepare(caller, request) as prepared:
            yield prepared

    async def read(self, caller: Caller, body: bytes, reader: Reader) -> Any:
        """Parse a body without blocking the event loop."""
        if self.request is not None:
            return await reader.read(caller, self.request, body, self.verbatim)
        return await self.parse(caller, body) if self.parse is not None else body

    def encode_failure(self, error: BaseException) -> bytes:
        """The body of a failed reply."""
        return encode_error(error, self.op.name, self.failure)

    def fail(self, caller: Caller, error: BaseException) -> bytes:
        """Count a call that failed; returns the body of its reply."""
        caller.counts.fail(self.op, error)
        return self.encode_failure(error)


class Table:
    """One entry per opcode: an immediate handler, a waiting handler, or a refusal; and the limit of the body.

    A call with rights that answers immediately has both handlers: the immediate one raises
    :class:`~agentos.kernel.ports.MustAsk` for what a person must approve, and the waiting one asks.

    ``turns`` answers in the order of the requests, like ``now``, but lets other tasks run meanwhile. It is used for
    calls that are ``in_order``, and for immediate ones above :data:`~agentos.kernel.request_body.MAX_INLINE_BYTES`.
    ``deferred`` begins calls that wait without a task; it too raises ``MustAsk``, and leaves large bodies to ``later``.
    ``observe`` is told of every call that has ended, unless its request could not be read. With it none is deferred.
    """

    __slots__ = ("deferred", "later", "limits", "now", "observe", "performs", "reader", "syscalls", "turns")

    def __init__(self, syscalls: Iterable[Syscall], observe: Observe | None = None) -> None:
        self.observe = observe
        self.syscalls: dict[int, Syscall] = {}  # by opcode
        self.limits = [SMALL_BODY_BYTES] * 256
        self.now: list[Now | None] = [_unknown(number) for number in range(256)]
        self.later: list[Later | None] = [None] * 256
        self.turns: list[InTurns | None] = [None] * 256
        self.deferred: list[Defer | None] = [None] * 256
        self.performs: dict[Op, Perform] = {}
        self.reader = Reader()
        for syscall in syscalls:
            self.syscalls[syscall.op] = syscall
            self.limits[syscall.op] = syscall.limit
            perform = _perform(syscall) if syscall.prepare is not None else syscall.handler
            assert perform is not None, "a call is prepared or handled"
            if observe is not None:
                perform = observe_perform(perform, syscall.op, observe)
            if syscall.waits or syscall.prepare is not None:
                self.performs[syscall.op] = perform
                self.later[syscall.op] = _later(syscall, perform, self.reader)
            if syscall.deferred:
                self.now[syscall.op] = None
                if observe is None:
                    self.deferred[syscall.op] = deferred_entry(syscall)
            elif syscall.waits:
                self.now[syscall.op] = None
            else:
                answer = _answer(syscall)
                if observe is not None:
                    answer = observe_answer(answer, syscall.op, observe, syscall.in_order)
                self.now[syscall.op] = None if syscall.in_order else _now(syscall, answer)
                self.turns[syscall.op] = _in_turns(syscall, answer, self.reader)
        for op in connection_calls.OPS:
            self.now[op] = None

    async def perform(self, op: Op, call: Call, request: object) -> object:
        """Serve a call that a gateway has parsed, with the same checks and audit entries; returns the unencoded reply.

        Only for calls that may wait or need rights. Raises ``CallError``.
        """
        if op not in self.performs:
            raise UnknownCall(f"this kernel has no call {op.name}")
        counts = call.caller.counts
        try:
            reply = await self.performs[op](call, request)
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


def _answer(syscall: Syscall) -> Callable[[Caller, Any], Any]:
    """The function that answers without a task: the handler, or ``act`` once its rights have been required."""
    prepare = syscall.prepare
    if prepare is None:
        assert syscall.handler is not None, "a call is prepared or handled"
        return syscall.handler

    def answer(caller: Caller, request: Any) -> Any:
        try:
            prepared: Prepared = prepare(caller, request)
        except PermissionDenied as error:
            note_refusal(caller, syscall.op.name, error)
            raise
        for right in prepared.rights:
            caller.require_right(right, prepared.about)
        if prepared.error is not None:
            raise prepared.error
        return prepared.act(caller)

    return answer


def _now(syscall: Syscall, answer: Callable[[Caller, Any], Any]) -> Now:
    op, request, verbatim = int(syscall.op), syscall.request, syscall.verbatim
    if request is None:
        raw: Now = answer
        return raw

    def reply(caller: Caller, body: bytes) -> bytes:
        try:
            encoded = encode_reply(answer(caller, read(request, body, verbatim)))
        except MustAsk:
            raise
        except Exception as error:
            return syscall.fail(caller, error)
        caller.counts.ok[op] += 1
        return encoded

    return reply


def _in_turns(syscall: Syscall, answer: Callable[[Caller, Any], Any], reader: Reader) -> InTurns | None:
    if syscall.request is None:
        return None

    async def reply(caller: Caller, body: bytes) -> bytes:
        try:
            answered = answer(caller, await syscall.read(caller, body, reader))
            encoded = encode_reply(await answered if syscall.in_order else answered)
        except MustAsk:
            raise
        except Exception as error:
            return syscall.fail(caller, error)
        caller.counts.ok[syscall.op] += 1
        return encoded

    return reply


def _later(syscall: Syscall, perform: Perform, reader: Reader) -> Later:
    background = syscall.background

    async def reply(call: Call, body: bytes) -> bytes:
        try:
            request = await syscall.read(call.caller, body, reader)
            if background is not None and request.async_:
                answer = partial(perform_and_encode, request=request)
                number = background.start(call, syscall.op, request.request_id, len(body), answer)
                return encode_reply(Accepted(request_id=number))
        except Exception as error:
            return syscall.fail(call.caller, error)
        return await perform_and_encode(call, request)

    async def perform_and_encode(call: Call, request: Any) -> bytes:
        try:
            answered = await perform(call, request)
            encode = encode_in_turns(answered) if syscall.encode is None else syscall.encode(call.caller, answered)
            encoded = await encode
        except (Gone, trio.Cancelled) as error:
            call.caller.counts.fail(syscall.op, error)
            raise
        except Exception as error:
            return syscall.fail(call.caller, error)
        call.caller.counts.ok[syscall.op] += 1
        return encoded

    return reply


def _perform(syscall: Syscall) -> Perform:
    """The steps of a call that needs rights: prepare, require, record the intent, act, record the outcome.

    Where a person must approve, the first attempt ends before the intent, and what was prepared is released.
    """
    assert syscall.prepare is not None, "the call needs rights"
    prepare: Callable[[Caller, Any], AbstractAsyncContextManager[Prepared]] = syscall.prepare
    if not syscall.waits:
        prepare = _open(syscall.prepare, syscall.deferred)
    name, audit, charge = syscall.op.name, syscall.audit, syscall.charge

    async def perform(call: Call, request: Any) -> object:
        if charge is not None:
            charge(call.caller)
        try:
            return await attempt(call, request)
        except MustAsk as asked:
            first = asked
        return await ask_and_repeat(call, first, partial(attempt, call, request))

    async def attempt(call: Call, request: Any) -> object:
        caller, outcome = call.caller, "cancelled"
        prepared: Prepared | None = None
        record: Record | None = None
        try:
            async with prepare(caller, request) as prepared:
                allowed = require(caller, prepared)
                if allowed.must_ask:
                    await approve(caller, name, request, prepared, allowed)
                if audit == "intent" and prepared.announce and prepared.error is None:
                    allowed.intent = await caller.audit.intend(allowed.entry("intent"))
                    record = allowed
                    record.require_again(prepared.rights)  # recording took a while: they may have been revoked
                record = allowed
                if prepared.error is not None:
                    raise prepared.error
                reply = await prepared.act(call)
            outcome = "ok"
            return reply
        except Exception as error:
            if isinstance(error, PermissionDenied) and prepared is None:
                note_refusal(caller, name, error)
            outcome = call.outcome or outcome_of(error)
            raise
        finally:
            if record is not None and (audit != "none" or record.must_ask):
                caller.audit.note(record.entry("outcome", outcome, call.remark))

    return perform


def _open(
    prepare: Callable[[Caller, Any], Prepared], deferred: bool
) -> Callable[[Caller, Any], AbstractAsyncContextManager[Prepared]]:
    """A ``prepare`` that answers at once, or begins something, in the form of one that may wait."""

    @asynccontextmanager
    async def opened(caller: Caller, request: Any) -> AsyncIterator[Prepared]:
        prepared = prepare(caller, request)

        async def act(call: Call) -> object:
            answered = prepared.act(call.caller)
            if deferred:
                return await wait(answered)
            return await answered if isawaitable(answered) else answered

        yield replace(prepared, act=act)

    return opened
