"""Dispatch tables: the handler and body limit of each opcode, per caller, built before a frame arrives."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, Literal

import trio
from attrs import frozen

from agentos_sdk import codec
from agentos_sdk.errors import ApprovalRequired, CallError, PermissionDenied, UnknownCall
from agentos_sdk.frames import MAX_PAYLOAD
from agentos_sdk.opcodes import Op, op_name

from .call import Call, Gone, Judged
from .caller import Caller
from .internal_errors import internal
from .ports import Decision, Right
from .request_body import Reader, read

SMALL = 256 << 10  # bytes; default limit of a body
LARGE = 1 << 20
MOST_SHOWN = 300  # bytes of a refused call's body that the audit log records
MOST_TOLD = 8 << 10  # characters of an error text, which may quote the request

Now = Callable[[Caller, bytes], bytes]
Later = Callable[[Call, bytes], Awaitable[bytes]]
InTurns = Callable[[Caller, bytes], Awaitable[bytes]]


@frozen
class Syscall:
    """One system call: its opcode, the type of its request, and its handler.

    A ``def`` handler takes ``(caller, request)`` and answers while input is read; an ``async def`` takes ``(call,
    request)`` and runs in a task. Both return a reply that :func:`agentos_sdk.codec.encode` takes, or encoded bytes.
    With ``request=None`` the handler gets the raw bytes. ``limit`` is the largest body in bytes; ``failure`` holds the
    keys of a failed reply besides ``success``, ``error`` and ``code``. Fields named in ``verbatim`` are JSON that is
    passed on unchanged, as :class:`~agentos.kernel.request_body.Verbatim`.

    ``audit`` selects what the audit log records besides refusals: nothing, the outcome, or also the intent before
    anything is done. ``rights`` returns what a request would need and has no side effects.

    ``in_order``: the handler is an ``async def`` of ``(caller, request)`` without a task. Other connections are served
    while it works, but its own connection answers nothing else until it has returned.
    """

    op: Op
    request: type | None
    handler: Callable[[Any, Any], Any]
    limit: int = SMALL
    failure: Mapping[str, object] = {}
    verbatim: Collection[str] = ()
    audit: Literal["none", "outcome", "intent"] = "none"
    rights: Callable[[Caller, Any], Awaitable[Sequence[Right]]] | None = None
    in_order: bool = False


class Table:
    """One entry per opcode: an immediate handler, a waiting handler, or a refusal; and the limit of the body.

    ``turns`` answers in the order of the requests, like ``now``, but lets other tasks run meanwhile. It is used for
    calls that are ``in_order``, and for immediate ones above :data:`~agentos.kernel.request_body.INLINE` bytes.
    """

    __slots__ = ("later", "limits", "now", "reader", "syscalls", "turns")

    def __init__(self, syscalls: Iterable[Syscall], max_payload: int = MAX_PAYLOAD) -> None:
        self.syscalls: dict[int, Syscall] = {}  # by opcode
        self.limits = [SMALL] * 256
        for op in (Op.THINK, Op.WRITE, Op.HTTP):  # clients may send these to a kernel that doesn't serve them yet
            self.limits[op] = max_payload
        for op in (Op.STORE, Op.EMIT):
            self.limits[op] = LARGE
        self.now: list[Now | None] = [_unknown(number) for number in range(256)]
        self.later: list[Later | None] = [None] * 256
        self.turns: list[InTurns | None] = [None] * 256
        self.reader = Reader()
        for syscall in syscalls:
            self.syscalls[syscall.op] = syscall
            self.limits[syscall.op] = syscall.limit
            if syscall.in_order:
                self.now[syscall.op], self.turns[syscall.op] = None, _in_turns(syscall, self.reader)
            elif iscoroutinefunction(syscall.handler):
                self.now[syscall.op], self.later[syscall.op] = None, _later(syscall, self.reader)
            else:
                self.now[syscall.op], self.turns[syscall.op] = _now(syscall), _in_turns(syscall, self.reader)
        for op in (Op.HELLO, Op.CANCEL, Op.EXIT):  # answered by the connection itself
            self.now[op] = self.later[op] = None

    def refusing(self, refused: Mapping[Op, Decision]) -> "Table":
        """A copy of this table for a caller to which some opcodes are always refused."""
        if not refused:
            return self
        table = copy(self)
        table.now, table.later, table.turns = list(self.now), list(self.later), list(self.turns)
        for op, decision in refused.items():
            table.now[op], table.later[op], table.turns[op] = _refused(op, decision, self.syscalls.get(op)), None, None
        return table

    def failed(self, op: int, error: BaseException) -> bytes:
        """The body of a failed reply to this opcode, whether it is served or not."""
        return failed(error, self.syscalls.get(op))


def _refused(op: Op, decision: Decision, syscall: Syscall | None) -> Now:
    error = PermissionDenied if decision.effect == "deny" else ApprovalRequired
    reply = failed(error(decision.reason, rule=decision.rule), syscall)

    def refuse(caller: Caller, body: bytes) -> bytes:
        about = body[:MOST_SHOWN].decode(errors="replace")  # not parsed, but the attempt is worth recording
        caller.audit.note(caller.entry(op.name, about, decision, "outcome", error.code))
        return reply

    return refuse


def _unknown(number: int) -> Now:
    reply = failed(UnknownCall(f"this kernel has no call {op_name(number)}"))

    def refuse(caller: Caller, body: bytes) -> bytes:
        return reply

    return refuse


def _now(syscall: Syscall) -> Now:
    handler, request, verbatim = syscall.handler, syscall.request, syscall.verbatim
    if request is None:
        raw: Now = handler
        return raw

    def answer(caller: Caller, body: bytes) -> bytes:
        try:
            return finish(handler(caller, read(request, body, verbatim)))
        except Exception as error:
            return failed(error, syscall)

    return answer


def _in_turns(syscall: Syscall, reader: Reader) -> InTurns | None:
    handler, request, verbatim = syscall.handler, syscall.request, syscall.verbatim
    if request is None:
        return None

    async def answer(caller: Caller, body: bytes) -> bytes:
        try:
            reply = handler(caller, await reader.read(caller, request, body, verbatim))
            return finish(await reply if syscall.in_order else reply)
        except Exception as error:
            return failed(error, syscall)

    return answer


def _later(syscall: Syscall, reader: Reader) -> Later:
    handler, request, verbatim = syscall.handler, syscall.request, syscall.verbatim

    async def answer(call: Call, body: bytes) -> bytes:
        call.announces = syscall.audit == "intent"
        outcome = "cancelled"
        try:
            given = body if request is None else await reader.read(call.caller, request, body, verbatim)
            reply = await finish_in_turns(await handler(call, given))
            outcome = "ok"
            return reply
        except Gone:
            raise
        except Exception as error:
            outcome = error.code if isinstance(error, CallError) else "internal"
            return failed(error, syscall)
        finally:
            if call.judged is not None and syscall.audit != "none":
                _note(call.caller, call.judged, outcome)

    return answer


def _note(caller: Caller, judged: Judged, outcome: str) -> None:
    took = perf_counter() - judged.began
    entry = caller.entry(judged.call, judged.about, judged.decision, "outcome", outcome, took, judged.intent)
    caller.audit.note(entry)


def finish(reply: object) -> bytes:
    return reply if isinstance(reply, bytes) else codec.encode(reply)


async def finish_in_turns(reply: object) -> bytes:
    """Encode like :func:`finish`; other tasks run between the pieces of a long list."""
    if isinstance(reply, bytes):
        return reply
    pieces: list[bytes] = []
    for piece in codec.encode_pieces(reply):
        if pieces:
            await trio.lowlevel.checkpoint()
        pieces.append(piece)
    return b"".join(pieces)


def failed(error: BaseException, syscall: Syscall | None = None) -> bytes:
    """The body of a failed reply. A caller's error says what to do; an internal error is logged under a reference."""
    if not isinstance(error, CallError):
        error = internal(error, syscall.op.name if syscall else "the core")
    usual, text = syscall.failure if syscall else {}, str(error)
    if len(text) > MOST_TOLD:
        text = f"{text[:MOST_TOLD]}…"
    return codec.encode({"success": False, "error": text, "code": error.code, **usual, **error.details})
