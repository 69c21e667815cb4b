"""Asks the model: trims the conversation, keeps the answer, and asks once more after a failure that may pass."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentos_sdk.opcodes import Op

from .engine.effects import Call, Sleep, Work
from .engine.history import RESULT_HEAD, History, estimate_tokens
from .text_protocol import describe, is_only_json, parse_calls
from .tools.call_tools import DONE_DESCRIPTION

if TYPE_CHECKING:
    from .engine.budget import Spent
    from .engine.engine import Task
    from .engine.records import Records

DEFAULT_CONTEXT = 128_000  # tokens, until an answer of the model says what [llm.context] has
PAUSES = (1.0, 3.0, 10.0)  # seconds before the next attempts
PASSING = {"unavailable", "busy", "timeout"}  # failures that may be over by then: the kernel has retried as well
NO_TOOLS = re.compile(r"\btools?\b|function call", re.IGNORECASE)  # in a refusal of a question that has some
NO_IMAGES = re.compile(r"\bimages?\b", re.IGNORECASE)  # in a refusal of a question that shows some
MALFORMED_CALL = "arguments that are no JSON object"  # in the kernel's error for an answer with such a tool call
MAX_MALFORMED = 3  # times that the model is told so in one step
MALFORMED_NOTE = "Your call had arguments that are no JSON object. Make it again with valid JSON."
MAX_ANSWER = 400_000  # bytes of an answer as JSON
SHOWN = 2000  # characters of one that is longer
KEPT = ("content", "tool_calls", "finish_reason", "model", "usage", "tokens", "cost", "context")  # of an answer
SUMMARISE = (
    "Summarise this work for yourself: it will replace the messages. Keep what is needed to go on: what was found out, "
    "which files were changed and how, what failed, what remains. No tool is needed.\n\n"
)


class Asker:
    """Asks the model about one task. ``uses_text``: tool calls are text, see :mod:`.text_protocol`."""

    def __init__(
        self,
        task: Task,
        records: Records,
        history: History,
        spent: Spent,
        report: Callable[[dict[str, Any]], Work[None]],
    ) -> None:
        self._task, self._records, self._history, self._spent, self._report = task, records, history, spent, report
        self._tools = [*(tool.described() for tool in task.tools), DONE_DESCRIPTION]
        self._context = DEFAULT_CONTEXT
        self.uses_text = task.text_protocol is True

    def ask(self, step: str) -> Work[dict[str, Any]]:
        """The answer of a step: the recorded one, or a new one; a failed reply is returned as it is."""
        thought = yield from self._records.get(f"{step}/thought")
        if thought is None:
            yield from self._trim(step)
            asked = yield from self._note_asked(f"{step}/asked")
            reply, lost = yield from self._attempt()
            if lost or not reply["success"]:  # the kernel hasn't charged a failed question as it does an answer
                asked |= {"lost": asked.get("lost", 0) + lost, "times": asked["times"] - (not reply["success"])}
                yield from self._records.replace(f"{step}/asked", asked)
            if not reply["success"]:
                self._add_lost(asked)
                return dict(reply)
            thought = limited({**{name: reply.get(name) for name in KEPT}, "uses_text": self.uses_text})
            yield from self._records.create(f"{step}/thought", thought)
            text = thought["content"][:2000]
            yield from self._report({"step": int(step), "kind": "thought", "text": text, **_used(thought)})
        else:
            asked = (yield from self._records.get(f"{step}/asked")) or {"times": 0}
            if (trim := (yield from self._records.get(f"{step}/trim"))) is not None:
                self._apply(trim)
        self.uses_text = thought["uses_text"]
        self._spent.add(thought, asked["times"])
        self._add_lost(asked)
        self._context = thought["context"] or DEFAULT_CONTEXT
        self._history.count(thought["usage"])
        return {"success": True, **thought}

    def _note_asked(self, name: str) -> Work[dict[str, Any]]:
        """Record that the model is asked, before it is; returns how often it was, with the answers lost in crashes."""
        before = yield from self._records.get(name)
        asked = {**(before or {}), "times": 1 if before is None else before["times"] + 1, "at": time.time()}
        yield from (self._records.create if before is None else self._records.replace)(name, asked)
        return asked

    def _add_lost(self, asked: Mapping[str, Any]) -> None:
        self._spent.add({"tokens": asked.get("lost", 0)})

    def _attempt(self) -> Work[tuple[dict[str, Any], int]]:
        """The reply, and the tokens of answers before it that had calls with malformed arguments."""
        lost, malformed, pauses = 0, 0, iter(PAUSES)
        while True:
            reply = yield from self._ask_once([MALFORMED_NOTE] if malformed else [])
            if reply["success"]:
                return reply, lost
            if MALFORMED_CALL in reply["error"]:
                lost += reply.get("tokens", 0)
                malformed += 1
                if malformed > MAX_MALFORMED:
                    return reply, lost
                continue
            pause = next(pauses, None)
            if reply["code"] not in PASSING or reply.get("retry") is False or pause is None:
                return reply, lost
            yield Sleep(pause)

    def _ask_once(self, notes: Sequence[str]) -> Work[dict[str, Any]]:
        """Ask, with notes to the model at the end; what it turns out not to take is left out at once."""
        shown = [{"role": "user", "content": note} for note in notes]
        reply: dict[str, Any] = yield self._question([*self._history.shown(), *shown])
        if reply["success"] or MALFORMED_CALL in reply["error"]:
            return reply
        refused = reply["code"] in ("bad_request", "unavailable") and NO_TOOLS.search(reply["error"])
        if refused and not self.uses_text and self._task.text_protocol is None:
            self.uses_text = True
            reply = yield self._question([*self._history.shown(), *shown])
        if (
            not reply["success"]
            and reply["code"] in ("bad_request", "unavailable")
            and self._leave_images_out(reply["error"])
        ):
            reply = yield self._question([*self._history.shown(), *shown])
        return reply

    def _leave_images_out(self, refusal: str) -> bool:
        """Whether the question was refused because of its images, which are left out from now on."""
        if not NO_IMAGES.search(refusal) or not self._history.has_images():
            return False
        self._history.shows_images = False
        return True

    def _question(self, messages: Sequence[Mapping[str, Any]]) -> Call:
        fields: dict[str, Any] = {"messages": messages, "system_instruction": self._task.instruction}
        if self.uses_text:
            fields["system_instruction"] += "\n\n" + describe(self._tools)
        else:
            fields["tools"] = self._tools
        if self._task.model is not None:
            fields["model"] = self._task.model
        return Call(Op.THINK, fields)

    # -- What an answer says -------------------------------------------------------------------------------------------

    def calls_of(self, thought: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
        """The tool calls of an answer, and what is wrong with a call that can't be read."""
        if thought["tool_calls"]:
            return with_ids(thought["tool_calls"]), None
        if self.uses_text:
            calls, mistake = parse_calls(thought["content"])
        else:  # some models write their call as text although they have tools; a call within a text is an example
            known, mistake = {tool["name"] for tool in self._tools}, None
            found = parse_calls(thought["content"])[0] if is_only_json(thought["content"]) else []
            calls = [call for call in found if call["name"] in known]
        return [{**call, "id": f"text_{place}"} for place, call in enumerate(calls)], mistake

    def add_answer(self, thought: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> None:
        """Add the answer to the conversation; calls that are text stay text."""
        message = {"role": "assistant", "content": thought["content"] or ("" if calls else "(empty)")}
        if thought["tool_calls"]:
            message["tool_calls"] = list(calls)
        self._history.add(message)

    def result_message(self, call: Mapping[str, Any], text: str) -> dict[str, Any]:
        """A tool's result as a message."""
        if str(call["id"]).startswith("text_"):
            return {"role": "user", "content": f"{RESULT_HEAD}{call['name']}:\n{text}"}
        return {"role": "tool", "tool_call_id": call["id"], "content": text}

    # -- The length of the conversation --------------------------------------------------------------------------------

    def _trim(self, step: str) -> Work[None]:
        """Leave out what doesn't fit into the context any more, and record that before it is used."""
        if (trim := (yield from self._records.get(f"{step}/trim"))) is not None:
            self._apply(trim)
            return
        is_wanted = self._task.compact_at == int(step)
        if not is_wanted and not self._history.is_full(self._context):
            return
        before = estimate_tokens(self._history.shown())
        self._history.cut_results(self._context)
        cost: dict[str, Any] = {"tokens": 0, "cost": None}
        is_needed = is_wanted or self._history.is_full(self._context)
        old = self._history.to_summarise(self._context) if is_needed else ""
        if old:
            times = (yield from self._note_asked(f"{step}/summary"))["times"]
            fields: dict[str, Any] = {"prompt": SUMMARISE + old, "model": self._task.model}
            reply = yield Call(Op.THINK, {name: value for name, value in fields.items() if value is not None})
            if reply["success"]:
                price = reply.get("cost")
                cost = {"tokens": times * reply["tokens"], "cost": None if price is None else times * price}
                self._spent.add(cost)
                self._history.summarise(reply["content"])
        if self._history.is_full(self._context):
            self._history.cut = len(self._history.messages)
        yield from self._records.create(f"{step}/trim", {**self._history.trimmed(), **cost})
        if (after := estimate_tokens(self._history.shown())) < before:
            yield from self._report({"step": int(step), "kind": "trimmed", "before": before, "after": after})

    def _apply(self, trim: Mapping[str, Any]) -> None:
        self._history.apply(trim)
        self._spent.add(trim)


def _used(thought: Mapping[str, Any]) -> dict[str, Any]:
    return {name: thought[name] for name in ("tokens", "cost", "model")}


def limited(thought: dict[str, Any]) -> dict[str, Any]:
    """An answer that fits into a record, with what its calls return; a larger one is cut off, without its calls."""
    if len(json.dumps(thought)) <= MAX_ANSWER:
        return thought
    return {**thought, "content": thought["content"][:SHOWN], "tool_calls": None, "finish_reason": "length"}


def with_ids(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls with an id each: some servers give two calls of an answer the same."""
    found: dict[str, dict[str, Any]] = {}
    for place, call in enumerate(calls):
        given = str(call["id"])
        number = f"call_{place}_{len(found)}" if given in found or given.startswith("text_") else given
        found[number] = {**call, "id": number}
    return list(found.values())
