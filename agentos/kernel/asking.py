"""Calls that a person must approve: the question, and repeating the call once the person has agreed."""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

import attrs
import msgspec
from msgspec import Struct, structs

from agentos.threads import Limiter, run_in_thread
from agentos_sdk.errors import CallError

from .call import Call
from .caller import Caller, describe_object
from .ports import Decision, MustAsk, Question
from .prepared import Prepared, Record

MAX_THREADS = 8  # callers whose questions are built at the same time; other threads of the kernel stay free
_threads = Limiter(MAX_THREADS)
_encoder = msgspec.json.Encoder(order="deterministic")


async def approve(caller: Caller, op: str, request: object, prepared: Prepared, record: Record) -> None:
    """Return if a person has approved this very call; the record then says by which approval.

    Otherwise :class:`~agentos.kernel.ports.MustAsk`, or ``ApprovalRefused`` if a refusal is remembered.
    """
    assert caller.approvals is not None, "a caller without approvals is refused"
    question = await build_question_in_turn(caller, op, request, prepared, record.decisions)
    try:
        approval = caller.approvals.take(caller, question)
    except CallError as error:
        note_unapproved(caller, question, error)
        raise
    if approval is None:
        raise MustAsk(question)
    record.decision = approval


async def build_question_in_turn(
    asker: Caller, op: str, request: object, prepared: Prepared, decisions: Sequence[Decision]
) -> Question:
    """:func:`build_question` in a thread. It may read large files, so each ``asker`` gets one thread at a time."""
    async with asker.turn:
        return await run_in_thread(build_question, op, request, prepared, decisions, limiter=_threads)


def build_question(op: str, request: object, prepared: Prepared, decisions: Sequence[Decision]) -> Question:
    """What a person is asked about a prepared call, by the ``decisions`` about its rights.

    Blocks: it may read files and hash a large request.
    """
    decided = zip(prepared.rights, decisions, strict=True)
    asked = tuple((right, decision) for right, decision in decided if decision.effect == "ask")
    identity = prepared.identity() if prepared.identity is not None else b""
    shown = prepared.shown() if prepared.shown is not None else ""
    digest = sha256(op.encode())
    rights = repr((prepared.rights, asked)).encode(errors="surrogatepass")
    for part in (_encode(request), rights, identity, shown.encode(errors="surrogatepass")):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    fields = list_fields(request) if prepared.shown is None else ()
    return Question(op, describe_object(prepared.rights[0], prepared.about), asked, digest.hexdigest(), shown, fields)


def list_fields(request: Any) -> Sequence[tuple[str, str]]:
    """The fields of a request that differ from their defaults, with their values as JSON."""
    if isinstance(request, bytes):
        return [("request", request.decode(errors="replace"))] if request else ()
    if isinstance(request, Struct):
        known = [(each.name, each.default) for each in structs.fields(request)]
    else:
        known = [(each.name, each.default) for each in attrs.fields(type(request))]
    given = [(name, getattr(request, name)) for name, default in known if getattr(request, name) != default]
    return [
        (name.removesuffix("_"), _encode(value).decode(errors="replace")) for name, value in given if value is not None
    ]


def _encode(request: Any) -> bytes:
    """A request as bytes, without what says only how it is answered: version 1 clients number theirs."""
    if hasattr(request, "request_id"):
        evolve = structs.replace if isinstance(request, Struct) else attrs.evolve
        request = evolve(request, request_id=None, async_=False)
    try:
        return request if isinstance(request, bytes) else _encoder.encode(request)
    except UnicodeEncodeError:  # half a surrogate pair
        return repr(request).encode(errors="surrogatepass")


async def ask_and_repeat(call: Call, first: MustAsk, attempt: Callable[[], Awaitable[object]]) -> object:
    """Wait for a person, then prepare and do the call anew; ask again if it isn't what was approved.

    Nothing is held meanwhile. A refusal is recorded in the audit log.
    """
    caller, asked, former = call.caller, first, None
    assert caller.approvals is not None, "a caller without approvals is refused"
    while True:
        question = asked.question
        assert question is not None, "the call was prepared in a task"
        try:
            await caller.approvals.wait(caller, question, call.approval_timeout, former)
        except CallError as error:
            note_unapproved(caller, question, error)
            raise
        try:
            return await attempt()
        except MustAsk as again:
            asked, former = again, question


def note_unapproved(caller: Caller, question: Question, error: CallError) -> None:
    """Record in the audit log that no person has approved a call."""
    _, decision = question.asked[0]
    entry = caller.entry(question.call, question.about, decision, "outcome", error.code)
    caller.audit.note(structs.replace(entry, reason=str(error)))
