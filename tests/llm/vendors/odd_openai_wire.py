"""OpenAI's chat completions as its imitators send them, with all their oddities at once.

Comments, CRLF, text that isn't escaped, events cut within names, characters and ends of lines, ``content: null`` beside
``reasoning_content``, tool calls whose numbers have gaps, usage in a last event without choices, and an error with
status 200, in the stream.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from . import openai_wire
from .openai_wire import BASE, key, question, refusal, wrong_key
from .script import Raw, Says, Step

__all__ = ["BASE", "events", "key", "question", "refusal", "wrong_key"]

CUTS = re.compile(rb"(?<=^dat)|(?<=[\xc0-\xff])|(?<=\r)")
THOUGHT = {"role": "assistant", "content": None, "reasoning_content": "hm, 数"}


def events(says: Says, body: Mapping[str, Any]) -> Iterator[bytes | Step]:
    yield b": PROCESSING\r\n\r\n"
    yield from _cut({"choices": [{"index": 0, "delta": THOUGHT, "finish_reason": None}], "usage": None})
    for event in openai_wire.events(says, body):
        if not isinstance(event, bytes) or event.startswith(b"data: [DONE]"):
            yield event
            continue
        value = json.loads(event.removeprefix(b"data: "))
        for choice in value.get("choices", ()):
            choice["delta"].setdefault("content", None)
            for call in choice["delta"].get("tool_calls", ()):
                call["index"] = 3 * call["index"] + 2
        yield from _cut(value)
        yield b": still here\r\n\r\n"


def _cut(value: Any) -> Iterator[Raw]:
    data = f"data: {json.dumps(value, ensure_ascii=False)}\r\n\r\n".encode()
    return (Raw(piece) for piece in CUTS.split(data))
