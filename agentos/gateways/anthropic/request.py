"""Parser of Anthropic's Messages requests into :class:`~agentos.llm.providers.provider.Question`.

Unknown fields are left out and named, as new versions of Anthropic's programs add some often. Those that only save
tokens or name an account (``context_management``, ``metadata``, ``service_tier``) are ignored. A field without which
the answer would be another is refused by name. Marks of the prompt cache are kept at their blocks. No I/O.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from agentos.gateways.left_out import known, list_left_out
from agentos.gateways.request_fields import (
    Asked,
    Fields,
    Mistake,
    check_stops,
    check_supported,
    decode_image,
    read_fields,
    refuse_fields,
)
from agentos.llm.answers.called_tools import arguments_of
from agentos.llm.answers.prompt_blocks import MAX_MARKS, BlockList, CacheMark
from agentos.llm.answers.sampling import Sampling
from agentos.llm.providers.prompts.past_calls import split_system
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.strict import Unexpected
from agentos_sdk.values import ThinkingLevel, Tool, ToolCall, ToolChoice

from .call_ids import split_call_id

REFUSED = dict.fromkeys(  # would change answer or place
    ("compaction", "container", "inference_geo", "mcp_servers", "thread"), "leave it out"
)
_PART = known(*("type", "text", "title", "context", "cache_control"), source=known("type", "media_type", "data"))
KNOWN = known(
    *("model", "max_tokens", "temperature", "top_p", "stop_sequences", "stream", "cache_control", *REFUSED),
    *("context_management", "metadata", "service_tier", "diagnostics", "user_profile_id", "workspace_id"),
    system=_PART,
    messages=known(
        "role",
        content=known(
            *("id", "name", "input", "tool_use_id", "is_error", "thinking", "signature", "data", "caller"),
            content=_PART,
            **_PART,
        ),
    ),
    tools=known(
        *("type", "name", "description", "input_schema", "strict", "cache_control", "eager_input_streaming"),
    ),
    tool_choice=known("type", "name", "disable_parallel_tool_use"),
    thinking=known("type", "budget_tokens", "display"),
    output_config=known("effort", "format"),
    output_format=known("type", "schema"),
)
EFFORTS: Mapping[str, ThinkingLevel] = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
MEDIUM_BUDGET, HIGH_BUDGET = 4096, 16384  # budget_tokens from which on the level is medium, and high
TTLS: Mapping[str, CacheMark] = {"5m": "5m", "1h": "1h"}
CHOICES: Mapping[str, ToolChoice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def parse_request(body: bytes, model: str, provider: str) -> Asked:
    """Parse a request; ``model`` is used if it names none. Slow if ``body`` is large.

    Raises :class:`BadRequest`, also for parameters that ``provider`` doesn't support.
    """
    request = read_fields(body)
    asked = Asked(_question(request, model), request.flag("stream"), left_out=list_left_out(request, KNOWN))
    fields = {"parallel_tool_calls": "tool_choice.disable_parallel_tool_use"}
    check_supported(asked.question.sampling, provider, fields)
    return asked


def _question(request: Fields, model: str) -> Question:
    refuse_fields(request, REFUSED)
    system, messages = _conversation(request)
    tools, choice = _tools(request)
    wanted = request.object("tool_choice")
    marks = ((tool.text("name") or "", _mark(tool)) for tool in request.objects("tools"))
    offered = {tool.name for tool in tools}
    question = Question(
        model=request.text("model") or model,
        messages=messages,
        system=system.text or None,
        temperature=request.number("temperature", 1),
        max_tokens=request.whole("max_tokens"),
        thinking_level=_thinking(request),
        tools=tools,
        tool_choice=choice,
        stop=check_stops(request.data.get("stop_sequences"), "stop_sequences"),
        response_schema=_schema(request),
        sampling=Sampling(
            top_p=request.number("top_p", 1),
            parallel_tool_calls=False if wanted is not None and wanted.flag("disable_parallel_tool_use") else None,
        ),
        system_blocks=system.blocks,
        marked_tools={name: mark for name, mark in marks if mark is not None and name in offered},
        cache_mark=_mark(request),
    )
    if (marked := len(question.cache_marks)) > MAX_MARKS:
        raise Mistake("cache_control", f"expected at most {MAX_MARKS} in a request, got {marked}")
    return question


def _conversation(request: Fields) -> tuple[BlockList, Sequence[Message]]:
    """The system instructions, and the messages after them."""
    system = BlockList("\n\n")
    if request.data.get("system") is not None:
        for block in _text_blocks(request, "system"):
            mark = _mark(block)
            if text := block.text("text"):
                system.add_text(text, mark)
    messages: list[Message] = []
    for message in request.objects("messages"):
        match message.required_text("role"):
            case "system":
                said, _ = _content(_text_blocks(message, "content"))
                messages.append(Message("system", said.text, blocks=said.blocks))
            case "user":
                messages += _user_messages(message)
            case "assistant":
                messages.append(_assistant_message(message))
            case role:
                raise Mistake(message.place("role"), str(Unexpected(role, "user", "assistant", "system")))
    for first in takewhile(lambda each: each.role == "system", messages):
        system.add_message(first.text, first.blocks)
    _, messages = split_system(messages)
    if not messages:
        raise Mistake("messages", "expected at least one message")
    if messages[-1].role == "assistant":
        raise Mistake("messages", "expected the user's message last: an answer can't be begun for the model (prefill)")
    return system, messages


def _mark(block: Fields) -> CacheMark | None:
    """The mark for the prompt cache at a block, a tool or the request."""
    control = block.object("cache_control")
    if control is None:
        return None
    if (given := control.required_text("type")) != "ephemeral":
        raise Mistake(control.place("type"), str(Unexpected(given, "ephemeral")))
    kind = block.data.get("type")
    if kind in ("thinking", "redacted_thinking") or (kind == "text" and not (block.text("text") or "").strip()):
        raise Mistake(block.place("cache_control"), "leave it out here: thoughts and blank texts can't be marked")
    return control.named("ttl", TTLS) or "default"


def _text_blocks(fields: Fields, name: str) -> Iterator[Fields]:
    """The blocks of a field that is a string or an array of text blocks."""
    for block in _blocks(fields, name):
        if (kind := block.required_text("type")) != "text":
            raise Mistake(block.place("type"), str(Unexpected(kind, "text")))
        yield block


def _content(blocks: Iterable[Fields], before: str = "") -> tuple[BlockList, Sequence[Image]]:
    """Blocks, with a blank line between their texts and ``before`` at the beginning, and their images."""
    said, shown = BlockList("\n\n"), []
    for block in blocks:
        match block.required_text("type"):
            case "text" | "document" as kind:
                text = block.text("text") or "" if kind == "text" else _document(block)
                said.add_text(before + text, _mark(block))
                before = ""
            case "image":
                said.add("image", _mark(block))
                shown.append(_image(block))
            case kind:
                raise Mistake(block.place("type"), str(Unexpected(kind, "text", "image", "document")))
    if before:
        said.add_text(before)
    return said, tuple(shown)


def _blocks(fields: Fields, name: str) -> Iterator[Fields]:
    content = fields.data.get(name)
    if type(content) is str:
        yield Fields({"type": "text", "text": content}, fields.place(name))
    elif type(content) is list:
        yield from fields.objects(name)
    else:
        raise Mistake(fields.place(name), str(Unexpected(content, "a string", "an array of blocks")))


def _user_messages(message: Fields) -> Iterator[Message]:
    """The results of tools, each a message, and then what else the user says."""
    blocks = [*_blocks(message, "content")]
    results = [block for block in blocks if block.data.get("type") == "tool_result"]
    yield from map(_tool_result, results)
    if len(blocks) > len(results) or not results:
        said, images = _content(block for block in blocks if block.data.get("type") != "tool_result")
        yield Message("user", said.text, images, blocks=said.blocks)


def _tool_result(block: Fields) -> Message:
    answers, _ = split_call_id(block.required_text("tool_use_id"))
    blocks = _blocks(block, "content") if block.data.get("content") is not None else ()
    said, images = _content(blocks, "Error: " if block.flag("is_error") else "")  # a tool's message has no field for it
    return Message("tool", said.text, images, answers=answers, blocks=said.blocks, mark=_mark(block))


def _assistant_message(message: Fields) -> Message:
    """Thoughts are left out: each provider makes its own anew."""
    said, calls = BlockList(""), []
    for block in _blocks(message, "content"):
        mark = _mark(block)
        match block.required_text("type"):
            case "text":
                said.add_text(block.text("text") or "", mark)
            case "tool_use":
                said.add("call", mark)
                calls.append(_call(block))
            case "thinking" | "redacted_thinking":
                pass
            case kind:
                raise Mistake(block.place("type"), str(Unexpected(kind, "text", "tool_use", "thinking")))
    return Message("assistant", said.text, calls=tuple(calls), blocks=said.blocks)


def _call(block: Fields) -> ToolCall:
    own_id, signature = split_call_id(block.required_text("id"))
    given = block.object("input")
    arguments = arguments_of(given.data) if given is not None else {}
    return ToolCall(own_id, block.called_name(), arguments, signature)


def _image(block: Fields) -> Image:
    source = block.required_object("source")
    kind = source.required_text("type")
    if kind != "base64":
        raise Mistake(source.place("type"), f"{Unexpected(kind, 'base64')}: no image is fetched from here")
    place = source.place("data")
    return decode_image(source.required_text("data"), source.required_text("media_type"), place)


def _document(block: Fields) -> str:
    source = block.required_object("source")
    kind = source.required_text("type")
    if kind != "text":
        raise Mistake(source.place("type"), f"{Unexpected(kind, 'text')}: documents are taken as plain text only")
    return "\n\n".join(filter(None, (block.text("title"), block.text("context"), source.text("data"))))


def _tools(request: Fields) -> tuple[Sequence[Tool], ToolChoice]:
    tools = []
    for tool in request.objects("tools"):
        if (kind := tool.text("type")) not in (None, "custom"):
            raise Mistake(tool.place("type"), f"{Unexpected(kind, 'custom')}: tools of Anthropic's own aren't there")
        schema = tool.required_object("input_schema")
        description, strict = codec.Text(tool.text("description") or ""), tool.flag("strict")
        tools.append(Tool(tool.required_text("name"), description, schema.data, strict))
    wanted = request.object("tool_choice")
    if wanted is None:
        return tuple(tools), "auto"
    kind = wanted.required_text("type")
    if kind not in CHOICES:
        raise Mistake("tool_choice.type", str(Unexpected(kind, *CHOICES)))
    if kind == "tool":  # then only that is offered
        name = wanted.required_text("name")
        tools = [tool for tool in tools if tool.name == name]
    if CHOICES[kind] == "required" and not tools:
        raise Mistake("tool_choice", "expected a tool that is in tools")
    return tuple(tools), CHOICES[kind]


def _thinking(request: Fields) -> ThinkingLevel | None:
    """The level of ``output_config.effort``, or that of the thinking's budget; not every model can be told not to."""
    output = request.object("output_config")
    effort: ThinkingLevel | None = output.named("effort", EFFORTS) if output is not None else None
    thinking = request.object("thinking")
    kind = thinking.required_text("type") if thinking is not None else "adaptive"
    if thinking is not None and kind == "enabled":
        budget = thinking.whole("budget_tokens") or 1
        if effort is None:
            return "low" if budget < MEDIUM_BUDGET else "medium" if budget < HIGH_BUDGET else "high"
    elif kind not in ("adaptive", "between_tools", "disabled"):
        raise Mistake("thinking.type", str(Unexpected(kind, "enabled", "adaptive", "disabled")))
    return effort if kind != "disabled" else None


def _schema(request: Fields) -> Mapping[str, Any] | None:
    output = request.object("output_config")
    wanted = (output.object("format") if output is not None else None) or request.object("output_format")
    if wanted is None:
        return None
    if (kind := wanted.required_text("type")) != "json_schema":
        raise Mistake(wanted.place("type"), str(Unexpected(kind, "json_schema")))
    return wanted.required_object("schema").data
