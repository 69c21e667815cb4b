"""Up to where a recording answers, what comes then, and answers that are others than the recorded ones."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from agentos.recordings.format import Json, Life
from agentos.recordings.reader import RecordedCall
from agentos_sdk.calls.think import Thought
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import Op

UNANSWERED: Json = {"success": True, "content": "", "tokens": 0, "usage": {}, "finish_reason": "stop",
                    "tool_calls": [], "queued_ms": 0.0, "latency_ms": 0.0}  # fmt: skip
OF_THOUGHT = frozenset(field.name for field in Thought.__attrs_attrs__)  # type: ignore[attr-defined]
EDITABLE = frozenset({"content", "tool_calls", "finish_reason", "usage", "tokens", "model"})
OF_KEYS = frozenset({"STORE", "FETCH", "DELETE"})
EFFECTS = frozenset({"STORE", "DELETE", "SEND", "BROADCAST", "SPAWN", "HTTP", "TOOL_CALL", "EMIT"})


@frozen
class Switch:
    """Calls whose begin has a number below ``until`` are answered from the recording; all without it.

    The rest is ``live``, or the replay ends there. ``edited`` are the numbers of calls that have another answer. Live
    questions are asked of ``model``. Those ``in_flight``, which another life's part of a tree hasn't seen, aren't
    answered.
    """

    until: int | None = None
    live: bool = False
    edited: frozenset[int] = frozenset()
    model: str | None = None
    in_flight: frozenset[int] = frozenset()

    @property
    def resumes(self) -> bool:
        """Whether a life goes on after a crash."""
        return self.live and self.until is None

    def is_before(self, call: RecordedCall) -> bool:
        return (self.until is None or call.begin < self.until) and call.begin not in self.in_flight


def plan_switch(
    calls: Sequence[RecordedCall],
    until: int | None,
    then: str | None,
    edits: Mapping[str, Any],
    model: str | None = None,
) -> tuple[Switch, Sequence[RecordedCall]]:
    """What a request asks for, and the calls of the life with their edited answers. Raises ``BadRequest``."""
    if then is not None and until is None:
        raise BadRequest("then: expected only with until")
    if model is not None and then != "live":
        raise BadRequest('model: expected only with then = "live"')
    last = max((call.begin for call in calls), default=0)
    if until is not None and not 1 <= until <= last + 1:
        raise BadRequest(f"until: the last call of the life is number {last}: expected 1 to {last + 1}, got {until}")
    by_number, edited = {call.begin: call for call in calls}, dict[int, RecordedCall]()
    for key, reply in edits.items():
        where = f"edits.{key[:40]}"
        call = by_number.get(int(key)) if key.isascii() and key.isdecimal() and len(key) < 19 else None
        if call is None:
            raise BadRequest(f"{where}: the life has no call with this number")
        if until is not None and call.begin >= until:
            raise BadRequest(f"{where}: only calls before {until}, which is until, are answered from the recording")
        edited[call.begin] = edit_answer(call, reply, where)
    switch = Switch(until, then == "live", frozenset(edited), model)
    return switch, [edited.get(call.begin, call) for call in calls]


def edit_answer(call: RecordedCall, reply: Mapping[str, Any], where: str) -> RecordedCall:
    """The call with these keys of its answer; keys that aren't given are the recorded ones. Raises ``BadRequest``."""
    if call.call != Op.THINK.name:
        raise BadRequest(f"{where}: only answers of THINK can be edited, and the call is {call.call}")
    if call.reply is None:
        raise BadRequest(f"{where}: the recorded question has no answer")
    unknown = sorted(reply.keys() - EDITABLE)
    if unknown:
        raise BadRequest(f"{where}.{unknown[0][:80]}: expected one of {', '.join(sorted(EDITABLE))}")
    base = call.reply if call.reply.get("success") is True else {**UNANSWERED, "model": call.request.get("model", "")}
    made = {**base, **reply}
    try:
        codec.decode(Thought, {key: value for key, value in made.items() if key in OF_THOUGHT})
    except codec.Invalid as error:
        raise BadRequest("; ".join(f"{where}.{mistake}" for mistake in error.mistakes[:5])) from None
    chunks: tuple[Json, ...] = ({"delta": made["content"]},) if call.request.get("stream") and made["content"] else ()
    return attrs.evolve(call, reply=made, chunks=chunks)


def list_spawned(calls: Sequence[RecordedCall]) -> Collection[int | str]:
    """Ids and names of the agents that a life spawned."""
    made = [call for call in calls if call.call == Op.SPAWN.name and call.reply and call.reply.get("success") is True]
    found = [value for call in made for value in (call.request.get("name"), (call.reply or {}).get("id"))]
    return frozenset(value for value in found if isinstance(value, int | str))


def is_of_own_key(call: RecordedCall) -> bool:
    """Whether a call is about a private key, which the live part finds as it was."""
    return call.call in OF_KEYS and "agent" in (call.request.get("scope"), (call.reply or {}).get("scope"))


def list_losses(calls: Sequence[RecordedCall], switch: Switch, life: Life, kept: Collection[int] = ()) -> Sequence[str]:
    """What the live part doesn't find as it was, in sentences; the effects of the calls ``kept`` are there."""
    done = [call for call in calls if switch.is_before(call) and call.reply and call.reply.get("success") is True]
    commands, found = sum(call.call == "EXEC" for call in done), list[str]()
    why = life.lost or ("the recording has none of them" if life.start is None else None)
    if commands and why is not None:
        found.append(f"commands of EXEC that aren't run: {commands}; files that they changed aren't there: {why}")
    lost = (call for call in done if call.call in EFFECTS and call.begin not in kept and not is_of_own_key(call))
    effects = Counter(call.call for call in lost)
    if switch.live and effects:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(effects.items()))
        found.append(f"answered and not done, so that the live part finds the state of today: {named}")
    return found
