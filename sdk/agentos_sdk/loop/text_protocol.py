"""Tool calls as text, for models without native tool calling: JSON objects as the original AgentOS's loop had them.

The model answers ``{"action": "exec", "args": {"command": "ls"}}``, alone, in a fenced block, or between other text.
Several objects, or a list of them, are several calls. ``tool`` or ``name`` for ``action``, and ``arguments``,
``parameters`` or ``input`` for ``args`` are understood, and arguments beside ``action``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentos_sdk.encoding.nesting import is_nested_deeper

MAX_DEPTH = 32  # levels of nested arrays and objects in a call: what a record and a question can hold
MAX_UNREADABLE = 1000  # brackets of an answer that begin no JSON, after which no more is looked for
OPENING = re.compile(r"[{\[]")
FENCED = re.compile(r"\s*```\w*\s(.*)```\s*", re.DOTALL)
NAMES = ("action", "tool", "name")
ARGUMENTS = ("args", "arguments", "parameters", "input", "action_input")
INSTRUCTION = """You call tools by answering with JSON and nothing else:

{"action": "TOOL", "args": {"ARGUMENT": "VALUE"}}

For several calls answer with a list of such objects. The tools:
"""


def describe(tools: Sequence[dict[str, Any]]) -> str:
    """The instruction for a model without tool calling."""
    lines = [f"- {tool['name']}: {tool['description']}\n  args: {json.dumps(tool['parameters'])}" for tool in tools]
    return INSTRUCTION + "\n".join(lines)


def parse_calls(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """The calls in an answer, each with ``name`` and ``arguments``, and what is wrong with its JSON, if anything is.

    Without any call, and without a mistake, the answer is just text.
    """
    found: list[Any] = []
    mistake, place, decoder, unreadable = None, 0, json.JSONDecoder(), 0
    while unreadable < MAX_UNREADABLE and (opening := OPENING.search(text, place)) is not None:
        try:
            value, place = decoder.raw_decode(text, opening.start())
        except ValueError as error:
            mistake = mistake or f"the JSON can't be read: {error}"
            place, unreadable = opening.end(), unreadable + 1
        except RecursionError:  # looking at each of its brackets would take as long again
            mistake = mistake or "the JSON is nested too deeply"
            break
        else:
            if (wrong := _find_wrong(value)) is None:
                found += value if isinstance(value, list) else [value]
            mistake = mistake or wrong
    calls = [call for value in found if (call := _call(value)) is not None]
    if calls:
        return calls, None
    looks_meant = any(f'"{name}"' in text for name in NAMES[:2])
    return [], mistake if looks_meant else None


def is_only_json(text: str) -> bool:
    """Whether a text is one JSON value and nothing else, in a fenced block or without."""
    fenced = FENCED.fullmatch(text)
    try:
        json.loads(text if fenced is None else fenced[1])
    except (ValueError, RecursionError):
        return False
    return True


def _find_wrong(value: Any) -> str | None:
    """Why a value that Python reads can't be sent as JSON, if it can't."""
    try:
        data = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "the JSON has half of a surrogate pair"
    except ValueError:
        return "the JSON has NaN or Infinity, which are no numbers in JSON"
    except RecursionError:
        return "the JSON is nested too deeply"
    return f"the JSON is nested more than {MAX_DEPTH} levels deep" if is_nested_deeper(data, MAX_DEPTH) else None


def _call(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    name = next((value[key] for key in NAMES if isinstance(value.get(key), str)), None)
    if name is None:
        return None
    given = next((value[key] for key in ARGUMENTS if key in value), None)
    if given is None:
        given = {key: each for key, each in value.items() if key not in (*NAMES, "thought", "reasoning")}
    return {"name": name, "arguments": given}
