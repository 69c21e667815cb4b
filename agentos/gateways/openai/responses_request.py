"""Parser of OpenAI's Responses requests into :class:`~agentos.llm.providers.provider.Question`.

Unknown fields are left out and named: programs are written for many servers. What the kernel can't do is refused by
name. No I/O.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from msgspec.structs import replace

from agentos.gateways.left_out import known, list_left_out
from agentos.gateways.request_fields import Asked, Fields, Mistake, check_supported, read_schema, refuse_fields
from agentos.llm.answers.sampling import Sampling
from agentos.llm.providers.prompts.past_calls import split_system
from agentos.llm.providers.provider import Image, Message, Question, Role
from agentos_sdk.encoding.strict import Unexpected
from agentos_sdk.values import ToolCall

from .reasoning import INCLUDED, read_signatures
from .request import EFFORTS, VERBOSITIES, parse_call, parse_image, read_class
from .responses_tools import ProgramTool, is_hosted, parse_tools

REFUSED = {  # fields and what to do instead
    "background": "an answer is waited for or streamed",
    "conversation": "name the previous_response_id of a stored response",
    "prompt": "there are no prompts kept here: send instructions",
    "context_management": "send less",
    "moderation": "there is none",
    "top_logprobs": "ask at /v1/chat/completions",
}
_PARTS = known(*("type", "text", "refusal", "image_url", "file_id", "annotations", "logprobs"))
_TOOL = known(*("type", "name", "description", "parameters", "strict", "format"))
KNOWN = known(
    *("model", "instructions", "temperature", "top_p", "max_output_tokens", "parallel_tool_calls", "metadata"),
    *("tool_choice", "include", "stream", "stream_options", "service_tier", "prompt_cache_key", "store", "truncation"),
    *("previous_response_id", *REFUSED),
    *("user", "safety_identifier", "client_metadata", "background_options"),  # they change no answer
    "max_tool_calls",  # counts hosted tools alone
    input=known(
        *("type", "role", "id", "status", "call_id", "name", "namespace", "arguments", "input", "encrypted_content"),
        *("summary", "extra_content"),
        content=_PARTS,
        output=_PARTS,
    ),
    text=known("verbosity", format=known("type", "name", "schema", "strict")),
    reasoning=known("effort", "summary", "generate_summary"),
    tools=known(*_TOOL, tools=_TOOL),
)
INCLUDABLE = (
    INCLUDED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}  # field by type


@frozen
class ResponsesRequest(Asked):
    """``input`` are the request's items as they were sent; ``echo`` are the fields that its response repeats.

    ``store``: keep the response for a request that names its id as ``previous_response_id``; None if it doesn't say.
    ``tools`` are those of the request by the model's names. ``has_reasoning``: signatures of calls are to come as items
    of their own.
    """

    store: bool | None = None
    input: Sequence[Mapping[str, Any]] = ()
    echo: Mapping[str, Any] = {}
    tools: Mapping[str, ProgramTool] = {}
    has_reasoning: bool = False


def parse_request(request: Fields, earlier: Sequence[Mapping[str, Any]], model: str, provider: str) -> ResponsesRequest:
    """Parse a request; ``earlier`` are the items of the conversation before it. ``model`` is used if it names none.

    Raises :class:`BadRequest`, also for parameters that ``provider`` doesn't support. Slow if there are large images.
    """
    refuse_fields(request, REFUSED)
    _check_include(request)
    if request.data.get("truncation") not in (None, "disabled"):
        raise Mistake("truncation", "expected disabled: nothing is left out here")
    items = list(_items(request))
    system, messages = _conversation([*(Fields(each, "previous_response_id") for each in earlier), *items])
    told = [text for text in (request.text("instructions"), *system) if text]
    if not messages:
        if not items or not told:
            raise Mistake("input", "expected a text, or at least one item")
        messages, told = [Message("user", told.pop())], told  # a model needs a user message
    tools = parse_tools(request)
    reasoning, text = request.object("reasoning"), request.object("text") or Fields({}, "text")
    question = Question(
        model=request.text("model") or model,
        messages=messages,
        system="\n\n".join(told) or None,
        temperature=request.number("temperature", 2),
        max_tokens=request.whole("max_output_tokens"),
        thinking_level=reasoning.named("effort", EFFORTS) if reasoning is not None else None,
        tools=tools.offered,
        tool_choice=tools.choice,
        response_schema=read_schema(text.object("format")),
        sampling=_sampling(request, text),
        cache_key=request.text("prompt_cache_key"),
    )
    check_supported(question.sampling, provider, {"verbosity": "text.verbosity"})
    sent = [each.data for each in items]
    return ResponsesRequest(
        question,
        request.flag("stream"),
        read_class(request),
        _left_out(request, tools.left_out),
        request.choice("store"),
        sent,
        _echo(request),
        tools.named,
        INCLUDED in (request.data.get("include") or ()),
    )


def _left_out(request: Fields, tools: Sequence[str]) -> Sequence[str]:
    """Types of tools and fields that the model's vendor isn't sent, the fields of those tools aside."""
    own = [tool for tool in request.array("tools") if isinstance(tool, dict) and not is_hosted(tool.get("type"))]
    return list_left_out(Fields({**request.data, "tools": own}), KNOWN, tools)


def _items(request: Fields) -> Iterator[Fields]:
    """The items of the input; a text is the user's message."""
    given = request.data.get("input")
    if type(given) is str:
        yield Fields({"type": "message", "role": "user", "content": given}, "input")
    else:
        yield from request.objects("input")


def _conversation(items: Iterable[Fields]) -> tuple[list[str], list[Message]]:
    """The first system messages' texts, and the conversation. Calls belong to the assistant's message before them."""
    messages = list[Message]()
    signatures = dict[str, str]()
    for item in items:
        match item.text("type") or "message":
            case "message":
                role, (text, images) = _role(item), _content(item, "content")
                messages.append(Message(ROLES[role], text, images))
            case "function_call" | "custom_tool_call":
                call = _call(item)
                if call.signature is None:
                    call = evolve(call, signature=signatures.get(call.id))
                if messages and messages[-1].role == "assistant":
                    messages[-1] = replace(messages[-1], calls=[*messages[-1].calls, call])
                else:
                    messages.append(Message("assistant", calls=[call]))
            case "function_call_output" | "custom_tool_call_output":
                text, images = _content(item, "output")
                messages.append(Message("tool", text, images, answers=item.required_text("call_id")))
            case "reasoning":
                signatures |= read_signatures(item.data.get("encrypted_content"))
            case other:
                kinds = ("message", "function_call", "function_call_output")
                raise Mistake(item.place("type"), str(Unexpected(other, *kinds)))
    return split_system(messages)


def _call(item: Fields) -> ToolCall:
    own = ProgramTool(item.called_name(), item.text("namespace"))
    if item.data["type"] == "function_call":
        return evolve(parse_call(item, item, "call_id"), name=own.model_name)
    return ToolCall(item.required_text("call_id"), own.model_name, {"input": item.text("input") or ""})


def _role(item: Fields) -> str:
    role = item.required_text("role")
    if role not in ROLES:
        raise Mistake(item.place("role"), str(Unexpected(role, *ROLES)))
    return role


def _content(item: Fields, name: str) -> tuple[str, Sequence[Image]]:
    """The text in a field, with its parts concatenated, and its images."""
    content = item.data.get(name)
    if type(content) is str:
        return content, ()
    if type(content) is not list:
        raise Mistake(item.place(name), str(Unexpected(content, "a string", "an array of parts")))
    texts, images = [], []
    for part in item.objects(name):
        kind = part.required_text("type")
        if kind in TEXT_PARTS:
            texts.append(part.text(TEXT_PARTS[kind]) or "")
        elif kind == "input_image" and item.data.get("role") not in ("assistant", "system", "developer"):
            if part.text("file_id") is not None:
                raise Mistake(part.place("file_id"), "not supported: no files are kept here, send image_url")
            images.append(parse_image(part.required_text("image_url"), part.place("image_url")))
        else:
            raise Mistake(part.place("type"), str(Unexpected(kind, "input_text", "output_text", "input_image")))
    return "".join(texts), images or ()


def _check_include(request: Fields) -> None:
    """Of what may be included, all but logprobs belongs to thoughts and hosted tools, which an answer here hasn't."""
    included = request.data.get("include")
    for index, each in enumerate(included if isinstance(included, list) else [included] if included else ()):
        if each not in INCLUDABLE:
            raise Mistake(f"include[{index}]", str(Unexpected(each, *INCLUDABLE)))


def _sampling(request: Fields, text: Fields) -> Sampling:
    return Sampling(
        top_p=request.number("top_p", 1),
        verbosity=text.named("verbosity", VERBOSITIES),
        parallel_tool_calls=request.choice("parallel_tool_calls"),
    )


def _echo(request: Fields) -> Mapping[str, Any]:
    """The request's fields that OpenAI repeats in the response, with its defaults."""
    usual: dict[str, object] = {
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
    }
    return {name: value if (given := request.data.get(name)) is None else given for name, value in usual.items()}
