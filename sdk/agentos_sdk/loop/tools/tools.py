"""What a tool is, and the text that the model gets back from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from agentos_sdk.loop.engine.budget import Spent
from agentos_sdk.loop.engine.effects import Call, Reply, Work

MAX_RESULT = 32_000  # characters of a tool's result; the middle of a longer one is left out

AfterCrash = Literal["again", "compare", "never"]


class ToolError(Exception):
    """A tool's failure: the text is what the model is told."""


class Context(NamedTuple):
    """What tools need to know of the task. ``save`` keeps a value of a running call in the task's records, by its name.

    ``directory`` is where commands run; None: where the kernel runs those of the caller. ``shares``: how many calls of
    the tool are made at the same time, and share what is left of the budget.
    """

    task_id: str
    agent: str
    depth: int
    model: str | None
    directory: str | None
    save: Callable[[str, Mapping[str, Any]], Work[None]]
    spent: Spent
    shares: int = 1


class Plan(NamedTuple):
    """What a change of a file will be: digests of its content before (None: no file) and after, and the content."""

    path: str
    before: str | None
    after: str
    content: str | bytes
    done: str


class Tool(NamedTuple):
    """A tool. ``parameters`` is a JSON schema; ``act(context, arguments, place)`` does it and returns the result.

    ``after_crash`` says what happens to a call that a crash has interrupted: it is made again (it only reads), its
    file is compared with the digests of its ``plan``, or it is never made again. ``place`` names the call in the
    task's records. ``together``: calls of it in one answer are made at the same time. ``is_checked``: its arguments are
    compared with ``parameters`` before it is called; otherwise it does that by itself.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    act: Callable[[Context, dict[str, Any], str], Work[str]]
    after_crash: AfterCrash = "never"
    plan: Callable[[dict[str, Any]], Work[Plan]] | None = None
    together: bool = False
    is_checked: bool = True

    def described(self) -> dict[str, Any]:
        """The tool as THINK takes it."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


def parameters(*required: str, **properties: tuple[str, str]) -> dict[str, Any]:
    """A JSON schema of an object, from the type and description of each property."""
    described = {name: {"type": kind, "description": text} for name, (kind, text) in properties.items()}
    return {"type": "object", "properties": described, "required": list(required)}


def checked(call: Call) -> Work[Reply]:
    """Make a call; a failed one is a :class:`ToolError` with the kernel's text."""
    reply: Reply = yield call
    if not reply.get("success", True):
        raise ToolError(f"{reply.get('code')}: {reply.get('error')}")
    return reply


def encodable(text: str) -> str:
    """The text with halves of surrogate pairs escaped, such as file names that are no UTF-8: JSON can't have them."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, limit: int = MAX_RESULT) -> str:
    """The text, or its beginning and end with a note of what is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
