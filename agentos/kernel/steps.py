"""The steps of a call, written once: prepare, require, ask, record the intent, act, record the outcome."""

# Calls are answered in three ways: while input is read, in a task, or begun now and finished by a callback. The order
# of the steps is what permissions and the audit log stand on, so it is one coroutine for all three; drivers.py runs it.
# ``call`` is None without a task. Then a call about which a person must be asked raises MustAsk before anything is
# done, and is made anew in a task, where asking.py holds nothing while it waits.
# What must stay true: nothing is done before every right is held and the intent is on disk; each call with an intent
# has an outcome, also if it is cancelled; the outcome is recorded after what was prepared has been released, for that
# may fail; the observer is told once of a call, when it has ended. docs/decisions/0028.

from collections.abc import Callable, Coroutine
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Protocol

from agentos_sdk.encoding import codec
from agentos_sdk.errors import PermissionDenied

from .asking import approve, ask_and_repeat
from .call import Call, Gone
from .call_counts import outcome_of
from .caller import Caller
from .drivers import in_task, suspend
from .ports import MustAsk
from .prepared import note_refusal, require
from .syscall import Syscall
from .wire.replies import encode_in_turns


class Observer(Protocol):
    """Is told of calls. It must neither wait nor raise."""

    def begin(self, call: Call | None) -> Any:
        """A call begins, in a task if there is a ``call``; what is returned is handed to :meth:`end`.

        A call about which a person must be asked begins a second time, in a task.
        """

    def end(self, caller: Caller, op: int, request: Any, outcome: object, answer: bytes | None, began: Any) -> None:
        """A call has ended with this reply or error. ``answer`` is its body; None if it has none, or isn't encoded.

        The request is the body if it isn't read, because all calls of this opcode are refused.
        """

    def pass_by(self, caller: Caller, op: int, body: bytes, answer: bytes) -> None:
        """The connection answered a call itself, or its body could not be read, or it is begun in the background."""

    def miss(self, caller: Caller, what: str) -> None:
        """The caller does something that is no call, so that its calls alone can't repeat it; ``what`` says it."""


class Serve(Protocol):
    """Serves a request that has been read: returns the body of the reply, or of a failed one.

    Not ``encoded``: returns the reply itself, and raises what makes the call fail.
    """

    def __call__(
        self, caller: Caller, request: Any, call: Call | None = None, encoded: bool = True
    ) -> Coroutine[Any, Any, Any]: ...


Attempt = Callable[[Caller, Any, Call | None], Coroutine[Any, Any, object]]


def build_steps(syscall: Syscall, observer: Observer | None = None) -> Serve:
    """All steps of a call, which is counted by how it has ended. Without a call they raise MustAsk."""
    op, encode, charge = int(syscall.op), syscall.encode, syscall.charge
    attempt = handle(syscall) if syscall.prepare is None else judge(syscall)

    def fail(caller: Caller, request: Any, error: BaseException, began: Any, answer: bytes | None) -> None:
        caller.counts.fail(op, error)
        if observer is not None:
            observer.end(caller, op, request, error, answer, began)

    async def serve(caller: Caller, request: Any, call: Call | None = None, encoded: bool = True) -> object:
        began, first = observer.begin(call) if observer is not None else None, None
        try:
            if charge is not None and call is not None:
                charge(caller)
            try:
                reply = await attempt(caller, request, call)
            except MustAsk as asked:
                if call is None:
                    raise
                first = asked
            if first is not None:
                assert call is not None, "it may wait for a person"
                reply = await ask_and_repeat(call, first, partial(attempt, caller, request, call))
            answer = reply
            if encoded and not isinstance(reply, bytes):
                if call is None:
                    answer = codec.encode(reply)
                else:
                    answer = await (encode_in_turns(reply) if encode is None else encode(caller, reply))
        except MustAsk:
            raise
        except Exception as error:
            failure = syscall.encode_failure(error) if encoded and not isinstance(error, Gone) else None
            fail(caller, request, error, began, failure)
            if failure is None:
                raise
            return failure
        except BaseException as error:
            fail(caller, request, error, began, None)
            raise
        caller.counts.ok[op] += 1
        if observer is not None:
            observer.end(caller, op, request, reply, answer if isinstance(answer, bytes) else None, began)
        return answer

    return serve


def handle(syscall: Syscall) -> Attempt:
    handler, waits, awaits = syscall.handler, syscall.waits, syscall.waits or syscall.in_order
    assert handler is not None, "a call is prepared or handled"

    async def handled(caller: Caller, request: Any, call: Call | None) -> object:
        reply = handler(call if waits else caller, request)
        return await reply if awaits else reply

    return handled


def judge(syscall: Syscall) -> Attempt:
    prepare: Any = syscall.prepare
    assert prepare is not None, "the call needs rights"
    name, returns = syscall.op.name, iscoroutinefunction(prepare)
    waits, begins = syscall.waits, syscall.deferred
    awaits = waits or (syscall.in_order and not begins)
    recorded, intends = syscall.audit != "none", syscall.audit == "intent"

    async def attempt(caller: Caller, request: Any, call: Call | None) -> object:
        outcome, prepared, record = "cancelled", None, None
        try:
            async with await prepare(caller, request) if returns else prepare(caller, request) as prepared:
                allowed = require(caller, prepared, recorded)
                if allowed is not None:
                    if allowed.must_ask:
                        if call is None:
                            raise MustAsk
                        await approve(caller, name, request, prepared, allowed)
                    if intends and prepared.announce and prepared.error is None:
                        allowed.intent = await caller.audit.intend(allowed.entry("intent"))
                        record = allowed
                        record.require_again(prepared.rights)  # recording took a while: they may have been revoked
                    record = allowed
                if prepared.error is not None:
                    raise prepared.error
                reply = prepared.act(call if waits else caller)
                if begins and callable(reply):
                    reply = await (suspend if call is None else in_task)(reply)
                elif awaits:
                    reply = await reply
            outcome = "ok"
            return reply
        except Exception as error:
            if isinstance(error, PermissionDenied) and prepared is None:
                note_refusal(caller, name, error)
            outcome = (call is not None and call.outcome) or outcome_of(error)
            raise
        finally:
            if record is not None:
                caller.audit.note(record.entry("outcome", outcome, call.remark if call is not None else ""))

    return attempt
