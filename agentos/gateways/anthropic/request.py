"""Parser of Anthropic's Messages requests into :class:`~agentos.llm.providers.provider.Question`.

Unknown fields are ignored, as new versions of Anthropic's programs add some often. So are those that only save tokens
or name an account: ``cache_control``, ``context_management``, ``metadata``, ``service_tier``. A field that
can't be ignored without changing the answer is refused by name. No I/O.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from agentos.gateways.request_fields import Fields, Mistake, check_stops, check_supported, decode_image, parse_object
from agentos.llm.called_tools import arguments_of
from agentos.llm.providers.past_calls import split_system
from agentos.llm.providers.provider import Image, Message, Question
from agentos.llm.sampling import Sampling
from agentos_sdk import codec
from agentos_sdk.codec import Invalid
from agentos_sdk.errors import BadRequest
from agentos_sdk.strict import Unexpected
from agentos_sdk.values import ThinkingLevel, Tool, ToolCall, ToolChoice

from .call_ids import split_call_id

REFUSED = ("compaction", "container", "inference_geo", "mcp_servers", "thread")  # would change answer or place
EFFORTS: Mapping[str, ThinkingLevel] = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
MEDIUM_BUDGET, HIGH_BUDGET = 4096, 16384  # budget_tokens from which on the level is medium, and high
CHOICES: Mapping[str, ToolChoice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


@frozen
class MessagesRequest:
    """A request to a model, and whether its answer is to be streamed."""

    question: Question
    stream: bool = False


def parse_request(body: bytes, model: str, provider: str) -> MessagesRequest:
    """Parse a request; ``model`` is used if it names none. Slow if ``body`` is large.

    Raises :class:`BadRequest`, also for parameters that ``provider`` doesn't support.
    """
    try:
        request = Fields(parse_object(body))
        asked = MessagesRequest(_question(request, model), request.flag("stream"))
    except Invalid as error:
        raise BadRequest(str(error)) from None
    fields = {"parallel_tool_calls": "tool_choice.disable_parallel_tool_use"}
    check_supported(asked.question.sampling, provider, fields)
    return asked


def _question(request: Fields, model: str) -> Question:
    for name in REFUSED:
        if request.data.get(name) not in (None, []):
            raise Mistake(name, "not supported: leave it out")
    system, messages = _conversation(request)
    tools, choice = _tools(request)
    wanted = request.object("tool_choice")
    return Question(
        model=request.text("model") or model,
        messages=messages,
        system=system,
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
    )


def _conversation(request: Fields) -> tuple[str | None, Sequence[Message]]:
    texts: list[str] = []
    if request.data.get("system") is not None:
        texts.append(_text(request, "system"))
    messages: list[Message] = []
    for message in request.objects("messages"):
        match message.required_text("role"):
            case "system":
                messages.append(Message("system", _text(message, "content")))
            case "user":
                messages += _user_messages(message)
            case "assistant":
                messages.append(_assistant_message(message))
            case role:
                raise Mistake(message.place("role"), str(Unexpected(role, "user", "assistant", "system")))
    first, messages = split_system(messages)
    if not messages:
        raise Mistake("messages", "expected at least one message")
    if messages[-1].role == "assistant":
        raise Mistake("messages", "expected the user's message last: an answer can't be begun for the model (prefill)")
    return "\n\n".join(filter(None, [*texts, *first])) or None, messages


def _text(fields: Fields, name: str) -> str:
    """A field that is a string or an array of text blocks."""
    text, _ = _content(_blocks(fields, name), images=False)
    return text


def _content(blocks: Iterable[Fields], images: bool) -> tuple[str, Sequence[Image]]:
    """The texts of blocks, with a blank line between them, and their images."""
    texts, shown = [], []
    for block in blocks:
        kind = block.required_text("type")
        if kind == "text":
            texts.append(block.text("text") or "")
        elif kind == "document" and images:
            texts.append(_document(block))
        elif kind == "image" and images:
            shown.append(_image(block))
        else:
            allowed = ("text", "image", "document") if images else ("text",)
            raise Mistake(block.place("type"), str(Unexpected(kind, *allowed)))
    return "\n\n".join(texts), tuple(shown)


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
        text, images = _content((block for block in blocks if block.data.get("type") != "tool_result"), images=True)
        yield Message("user", text, images)


def _tool_result(block: Fields) -> Message:
    answers, _ = split_call_id(block.required_text("tool_use_id"))
    blocks = _blocks(block, "content") if block.data.get("content") is not None else ()
    text, images = _content(blocks, images=True)
    if block.flag("is_error"):
        text = f"Error: {text}"  # a tool's message has no field for it
    return Message("tool", text, images, answers=answers)


def _assistant_message(message: Fields) -> Message:
    """Thoughts are left out: each provider makes its own anew."""
    texts, calls = [], []
    for block in _blocks(message, "content"):
        match block.required_text("type"):
            case "text":
                texts.append(block.text("text") or "")
            case "tool_use":
                calls.append(_call(block))
            case "thinking" | "redacted_thinking":
                pass
            case kind:
                raise Mistake(block.place("type"), str(Unexpected(kind, "text", "tool_use", "thinking")))
    return Message("assistant", "".join(texts), calls=tuple(calls))


def _call(block: Fields) -> ToolCall:
    own_id, signature = split_call_id(block.required_text("id"))
    given = block.object("input")
    arguments = arguments_of(given.data) if given is not None else {}
    return ToolCall(own_id, block.required_text("name"), arguments, signature)


def _image(block: Fields) -> Image:
    source = _source(block)
    kind = source.required_text("type")
    if kind != "base64":
        raise Mistake(source.place("type"), f"{Unexpected(kind, 'base64')}: no image is fetched from here")
    place = source.place("data")
    return decode_image(source.required_text("data"), source.required_text("media_type"), place)


def _document(block: Fields) -> str:
    source = _source(block)
    kind = source.required_text("type")
    if kind != "text":
        raise Mistake(source.place("type"), f"{Unexpected(kind, 'text')}: documents are taken as plain text only")
    return "\n\n".join(filter(None, (block.text("title"), block.text("context"), source.text("data"))))


def _source(block: Fields) -> Fields:
    source = block.object("source")
    if source is None:
        raise Mistake(block.place("source"), "required field missing")
    return source


def _tools(request: Fields) -> tuple[Sequence[Tool], ToolChoice]:
    tools = []
    for tool in request.objects("tools"):
        if (kind := tool.text("type")) not in (None, "custom"):
            raise Mistake(tool.place("type"), f"{Unexpected(kind, 'custom')}: tools of Anthropic's own aren't there")
        schema = tool.object("input_schema")
        if schema is None:
            raise Mistake(tool.place("input_schema"), "required field missing")
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
    schema = wanted.object("schema")
    if schema is None:
        raise Mistake(wanted.place("schema"), "required field missing")
    return schema.data
