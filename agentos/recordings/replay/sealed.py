"""The calls of an agent that lives a recorded life again: rights are required as ever, and nothing is done outside."""

from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec.structs import replace

from agentos.access.think_request import ThinkRequest
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.steps import Attempt, build_steps, handle, judge
from agentos.kernel.syscall import Syscall
from agentos.kernel.wire.replies import encode_reply
from agentos.llm.providers.provider import Answer
from agentos.llm.queue.request import ThinkResult
from agentos.recordings.format import Json, encode_line, write_body
from agentos.recordings.reader import RecordedCall
from agentos.recordings.recorder.lines import describe_request
from agentos_sdk.calls.background import Accepted
from agentos_sdk.calls.think import Thought
from agentos_sdk.encoding import codec
from agentos_sdk.errors import ApprovalRefused, ApprovalRequired, CallError, NotFound, PermissionDenied, from_reply
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Scope

from .switch import OF_THOUGHT
from .tree.names import ABOUT_AGENTS, ADAPTED, OWN_FIELDS, change

if TYPE_CHECKING:
    from .life import LifeReplay

LIVE = frozenset({Op.NOOP})  # it says nothing
IN_SCOPES = frozenset({Op.FETCH, Op.DELETE})  # calls about a key in the first scope that has it
REFUSALS = (PermissionDenied, ApprovalRefused, ApprovalRequired)


def seal(calls: Iterable[Syscall], life: "LifeReplay") -> Sequence[Syscall]:
    """These calls, each in a task, answered by a life."""
    make = _switch if life.switch.live else _seal
    return [each if each.op in LIVE else make(each, life) for each in calls]


def _switch(syscall: Syscall, life: "LifeReplay") -> Syscall:
    """Answered by a life, or done as it is. It is chosen before anything is prepared, once if a person is asked."""
    op, opened = syscall.op, _open(syscall, life)
    live = attempt(opened)

    async def handler(call: Call, request: Any) -> object:
        if call not in life.chosen:
            found = life.chosen[call] = await life.find(op, request)
            if found is None:
                life.go_on(call.caller)
                if syscall.charge is not None:
                    syscall.charge(call.caller)
        found = life.chosen[call]
        if found is not None:
            return await attempt(_seal(syscall, life, found))(call.caller, request, call)
        if syscall.background is not None and request.async_:
            serve, size = build_steps(opened), len(encode_line(describe_request(request)))
            number = syscall.background.start(call, op, request.request_id, size, partial(serve, call.caller, request))
            return encode_reply(Accepted(request_id=number))
        return await live(call.caller, request, call)

    return replace(syscall, handler=handler, prepare=None, in_order=False, deferred=False, background=None, charge=None)


def _seal(syscall: Syscall, life: "LifeReplay", answer: RecordedCall | None = None) -> Syscall:
    op = syscall.op
    if syscall.prepare is None:

        async def handler(call: Call, request: Any) -> object:
            return await life.answer(op, call, request, None, answer)

        return replace(syscall, handler=handler, in_order=False, background=None)

    @asynccontextmanager
    async def prepare(caller: Caller, request: Any) -> AsyncIterator[Prepared]:
        async with AsyncExitStack() as held:
            recorded, failed = answer, None
            try:
                asked = name_itself(op, caller, request, life)
                if op is Op.SUBSCRIBE:  # what came before it has been told
                    asked = change(asked, {"since": None, "boot": None})
                if op in IN_SCOPES and asked.scope is None:
                    recorded = answer or await life.find(op, request)
                    asked = choose_scope(asked, recorded)
                found = await held.enter_async_context(syscall.preview(caller, asked))
                do = found.act if syscall.waits else partial(_act_now, found.act)
            except CallError as error:
                found, do, failed = Prepared((Right(op.name.lower()),), _nothing, about=""), None, error
            if isinstance(failed, REFUSALS):
                await life.compare_refused(op, request, failed, recorded)
                raise failed
            if failed is not None:  # what it is about isn't there now: the recorded one may have found it
                recorded = recorded or await life.find(op, request)
                if recorded is not None and recorded.reply is not None and recorded.reply.get("code") == failed.code:
                    raise from_reply(recorded.reply)

            async def act(call: Call) -> object:
                return await life.answer(op, call, request, do, recorded)

            known = found.error if isinstance(found.error, PermissionDenied) else None
            decisions = (caller.authorizer.decide(caller, right) for right in found.rights)
            refusal = known or next((each.refusal for each in decisions if each.effect == "deny"), None)
            if refusal is not None:
                await life.compare_refused(op, request, refusal, recorded)
            yield replace(found, act=act, error=known)

    return replace(syscall, prepare=prepare, in_order=False, deferred=False, background=None, charge=None)


def attempt(syscall: Syscall) -> Attempt:
    """Its steps, but for counting."""
    return handle(syscall) if syscall.prepare is None else judge(syscall)


def open_calls(calls: Iterable[Syscall], life: "LifeReplay") -> Sequence[Syscall]:
    """These calls as a fork makes them that is wholly live: as they are, but for what it was told of itself."""
    return [_open(each, life) for each in calls]


def _open(syscall: Syscall, life: "LifeReplay") -> Syscall:
    """With what it is asked adapted, if it has to be; it gets a task, or none, as what it wraps says."""
    if life.names is not None and syscall.op in ADAPTED:
        return life.names.wrap(syscall)
    if syscall.op not in ABOUT_AGENTS and syscall.op is not Op.THINK:
        return syscall
    prepare = syscall.prepare
    assert prepare is not None, "all of these need rights"

    @wraps(prepare)
    def prepare_own(caller: Caller, request: Any) -> Any:
        return prepare(caller, adapt(syscall.op, caller, request, life))

    return replace(syscall, prepare=prepare_own)


def adapt(op: Op, caller: Caller, request: Any, life: "LifeReplay") -> Any:
    """The request as it is done live."""
    if op is Op.THINK:
        return request if life.switch.model is None else ask_model(request, life.switch.model)
    return name_itself(op, caller, request, life)


def name_itself(op: Op, caller: Caller, request: Any, life: "LifeReplay") -> Any:
    """The request with the agent's own id and name where it has those of the recorded one, which it was told.

    Until it goes live, raises ``NotFound`` if it is about an agent that the recorded one had spawned, or has another
    id that means nothing in this kernel.
    """
    own: dict[str, object] = {}
    for key in OWN_FIELDS if op in ABOUT_AGENTS else ():
        value = getattr(request, key, None)
        if value == life.name:
            own[key] = caller.name
        elif type(value) is int and value == life.id:
            own[key] = caller.id
        elif not life.live.is_set() and (value in life.spawned or (life.is_foreign and type(value) is int)):
            raise NotFound(f"{key}: {value} is an agent of the recording")
    return change(request, own)


def choose_scope(request: Any, recorded: RecordedCall | None) -> Any:
    """The request about a key in the scope in which the recorded one had found it; that may not have it now."""
    scope = (recorded.reply or {}).get("scope") if recorded is not None else None
    return change(request, {"scope": scope} if scope in get_args(Scope) else {})


def ask_model(request: ThinkRequest, model: str) -> ThinkRequest:
    """The same question to another model; one for vectors stays as it is."""
    question = request.question
    return request if question.embed else replace(request, question=replace(question, model=model))


async def _act_now(act: Callable[[Caller], object], call: Call) -> object:
    return act(call.caller)


def _nothing(call: Any) -> None:
    raise AssertionError("the recording answers")


def read_reply(op: Op, reply: Json) -> object:
    """A recorded reply as its call gives it: encoded, but for THINK's, of which the endpoints make responses.

    Raises ``CallError``.
    """
    try:
        return read_thought(reply) if op is Op.THINK else write_body(reply)
    except (ValueError, TypeError) as error:
        raise CallError(f"the recorded reply can't be read: {error}") from None


def read_thought(reply: Json) -> ThinkResult:
    """The answer in a recorded reply. Raises ``CallError`` if it isn't one."""
    try:
        thought = codec.decode(Thought, {key: value for key, value in reply.items() if key in OF_THOUGHT})
        answer = Answer(
            str(thought.content),
            thought.usage,
            thought.finish_reason,  # type: ignore[arg-type]
            thought.model,
            tuple(thought.tool_calls),
            msgspec.json.encode(reply["logprobs"]) if "logprobs" in reply else None,
            tuple(b64decode(vector) for vector in reply.get("vectors", ())),
        )
    except (codec.Invalid, ValueError, TypeError) as error:
        raise CallError(f"the recorded answer can't be read: {error}") from None
    return ThinkResult(
        answer,
        thought.queued_ms / 1000,
        (thought.latency_ms - thought.queued_ms) / 1000,
        model=thought.model,
        requested_model=thought.requested_model,
        fallbacks=thought.fallbacks,
        cached=thought.cached,
        cost=thought.cost,
        context=thought.context,
    )
