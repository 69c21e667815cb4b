"""What the operator says to a task while it runs, or after it: messages to its agent, heard before each question."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from agentos_sdk.opcodes import Op

from .effects import Call, Work
from .records import Records, step_name

STOP = {"task": "stop"}
"""The message that stops a task after its step; it can be resumed."""
HEAD = "The user says:\n"  # begins a message of the conversation, so that the model can tell it from results of tools
MAX_MESSAGES = 100  # heard at a time; the next ones before the next question
MAX_TEXT = 100_000  # characters of one message


class Told(NamedTuple):
    """``texts`` are for the model; ``stop``: the task is to stop here."""

    texts: tuple[str, ...] = ()
    stop: bool = False


def hear(records: Records, step: int, said: tuple[int, str] | None) -> Work[Told]:
    """What the operator has said before a step: what is recorded, or else new messages, which are recorded.

    ``said`` is a step and what the agent was started with for it. Messages of other callers are left out: only the
    operator steers a task.
    """
    if (kept := (yield from records.get(key := f"{step_name(step)}/told"))) is not None:
        return Told(tuple(kept["texts"]))
    reply = yield Call(Op.RECV, {"max": MAX_MESSAGES, "wait": False})
    found = [each["message"] for each in reply.get("messages", ()) if each["from_kind"] == "operator"]
    if said is not None and said[0] == step:
        found.insert(0, said[1])
    texts = tuple(as_text(message)[:MAX_TEXT] for message in found if message != STOP)
    if texts:
        yield from records.create(key, {"texts": texts})
    return Told(texts, STOP in found)


def as_text(message: Any) -> str:
    return message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
