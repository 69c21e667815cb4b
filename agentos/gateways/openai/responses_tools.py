"""Tools of OpenAI's Responses requests: functions, those in namespaces, and custom tools. No I/O.

A model behind the kernel knows functions only. A function of a namespace gets a name with both, a custom tool becomes a
function with one text, and calls are turned back. Tools that OpenAI's servers would run are left out, unless
``tool_choice`` requires one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from attrs import evolve, frozen

from agentos.gateways.request_fields import Fields, Mistake
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import Unexpected
from agentos_sdk.values import Tool, ToolCall, ToolChoice

HOSTED = ("code_interpreter", "file_search", "image_generation", "mcp", "tool_search", "web_search")
DATED_SEARCH = re.compile("web_search_[a-z0-9_]{1,40}")  # a header and the audit log name it
MAX_LEFT_OUT = 16  # types of tools; clients refuse a header of 64 KiB
SEPARATOR = "__"  # between a namespace and a name
MAX_NAME = 64  # characters
INPUT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@frozen
class ProgramTool:
    """A tool as the program names it. ``is_custom``: it takes a text instead of arguments."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def model_name(self) -> str:
        """Its name for the model, at most :data:`MAX_NAME` characters unless the program's own is longer."""
        if self.namespace is None:
            return self.name
        joined = f"{self.namespace}{SEPARATOR}{self.name}"
        if len(joined) <= MAX_NAME:
            return joined
        return f"{joined[: MAX_NAME - 9]}_{sha256(joined.encode()).hexdigest()[:8]}"

    def fields_of(self, call: ToolCall) -> dict[str, Any]:
        """The name of a call and what it is made with, as fields of an item."""
        given = call.arguments
        place = {} if self.namespace is None else {"namespace": self.namespace}
        text = given if isinstance(given, str) else codec.encode(given).decode()
        if not self.is_custom:
            return {"name": self.name, "arguments": text, **place}
        written = given.get("input") if not isinstance(given, str) and len(given) == 1 else None
        return {"name": self.name, "input": written if isinstance(written, str) else text, **place}


@frozen
class ResponsesTools:
    """What the model is offered. ``named`` are all tools by the model's names; ``left_out`` are types of tools."""

    offered: Sequence[Tool]
    choice: ToolChoice
    named: Mapping[str, ProgramTool]
    left_out: Sequence[str]


def is_hosted(kind: object) -> bool:
    """Whether OpenAI's servers would run a tool of this type."""
    return isinstance(kind, str) and (kind in HOSTED or DATED_SEARCH.fullmatch(kind) is not None)


def parse_tools(request: Fields) -> ResponsesTools:
    """Raises :class:`Mistake` for a tool that isn't known, too many hosted types, and a choice that can't be made."""
    found: dict[str, tuple[ProgramTool, Tool]] = {}
    left_out: dict[str, None] = {}
    for tool in request.objects("tools"):
        kind = tool.required_text("type")
        if is_hosted(kind):
            left_out[kind] = None
            if len(left_out) > MAX_LEFT_OUT:
                raise Mistake(tool.place("type"), f"expected at most {MAX_LEFT_OUT} types of tools that servers run")
            continue
        for own, offered in _read(tool, kind):
            if own.model_name in found:
                raise Mistake(tool.place("name"), f"expected names that differ, got {own.model_name!r} twice")
            found[own.model_name] = own, offered
    tools, choice = _choose(request, [tool for _, tool in found.values()])
    return ResponsesTools(tools, choice, {name: own for name, (own, _) in found.items()}, [*left_out])


def _read(tool: Fields, kind: str, namespace: str | None = None) -> Iterator[tuple[ProgramTool, Tool]]:
    """A function or custom tool, or those of a namespace: its description stands before that of the first."""
    if kind not in ("function", "custom", "namespace") or (kind == "namespace" and namespace is not None):
        raise Mistake(tool.place("type"), f"{kind}: not supported, expected function, custom or namespace")
    name = tool.required_text("name")
    description = tool.text("description") or ""
    if kind == "namespace":
        for member in tool.objects("tools"):
            for own, offered in _read(member, member.required_text("type"), name):
                about = "\n\n".join(filter(None, (description, offered.description)))
                yield own, evolve(offered, description=codec.Text(about))
                description = ""
    elif kind == "function":
        schema = tool.object("parameters")
        parameters = schema.data if schema is not None else {}
        own = ProgramTool(name, namespace)
        yield own, Tool(own.model_name, codec.Text(description), parameters, tool.flag("strict"))
    else:
        own = ProgramTool(name, namespace, is_custom=True)
        yield own, Tool(own.model_name, codec.Text(description + _describe_format(tool)), INPUT)


def _describe_format(tool: Fields) -> str:
    wanted = tool.object("format")
    if wanted is None or wanted.text("type") in (None, "text"):
        return ""
    return f"\n\nThe input has to match this {wanted.text('syntax')} grammar:\n{wanted.text('definition')}"


def _choose(request: Fields, tools: Sequence[Tool]) -> tuple[Sequence[Tool], ToolChoice]:
    choice = request.data.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return tools, choice or "auto"
    if choice == "required" and tools:
        return tools, "required"
    chosen = request.object("tool_choice") if isinstance(choice, dict) else None
    mode = chosen.text("type") if chosen is not None else None
    if chosen is not None and mode in ("function", "custom", "allowed_tools"):
        allowed = [*chosen.objects("tools")] if mode == "allowed_tools" else [chosen]
        names = {ProgramTool(each.text("name") or "", each.text("namespace")).model_name for each in allowed}
        named = [tool for tool in tools if tool.name in names]
        if named:
            return named, "auto" if mode == "allowed_tools" and chosen.text("mode") != "required" else "required"
    raise Mistake("tool_choice", str(Unexpected(choice, "none", "auto", "required", "a function that is in tools")))
