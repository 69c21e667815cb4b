"""Parser of OpenAI's chat completion requests into :class:`~agentos.llm.providers.provider.Question`.

Unknown fields are left out and named: programs are written for many servers. Known fields that aren't supported by us
or by the kernel's provider are refused by name, as are wrong types. No I/O.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from agentos.gateways.left_out import known, list_left_out
from agentos.gateways.request_fields import (
    Asked,
    Fields,
    Mistake,
    check_stops,
    check_supported,
    decode_image,
    parse_object,
    read_fields,
    read_schema,
    refuse_fields,
)
from agentos.llm.answers.called_tools import read_arguments
from agentos.llm.answers.sampling import Effort, Sampling, Verbosity
from agentos.llm.providers.prompts.past_calls import split_system
from agentos.llm.providers.prompts.thoughts import CALL_FIELDS, MESSAGE_FIELDS, sign_call, sign_calls
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.codec import Invalid
from agentos_sdk.encoding.strict import Unexpected
from agentos_sdk.values import LLMClass, Tool, ToolCall, ToolChoice

MAX_BIASES = 1024  # tokens
EFFORTS: Mapping[str, Effort] = {
    "none": "none",
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "xhigh",
}

VERBOSITIES: Mapping[str, Verbosity] = {"low": "low", "medium": "medium", "high": "high"}

REFUSED = {  # fields and what to do instead
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "leave it out, and audio of modalities as well",
    "moderation": "there is none",
}
REFUSED_IN_MESSAGES = {"function_call": "use tool_calls", "audio": "send its transcript as content"}
KNOWN = known(
    *("model", "temperature", "max_completion_tokens", "max_tokens", "reasoning_effort", "stop", "tool_choice"),
    *("top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "verbosity"),
    *("parallel_tool_calls", "prompt_cache_key", "n", "modalities", "service_tier", "stream", "stream_options"),
    *REFUSED,
    *("user", "store", "metadata", "safety_identifier", "prediction"),  # they change no answer
    messages=known(
        *("role", "refusal", "tool_call_id", "annotations", *MESSAGE_FIELDS, *REFUSED_IN_MESSAGES),
        content=known("type", "text", "refusal", image_url=known("url")),
        tool_calls=known("id", "type", "index", *CALL_FIELDS, function=known("name", "arguments")),
    ),
    tools=known("type", function=known("name", "description", "parameters", "strict")),
    response_format=known("type", json_schema=known("name", "schema", "strict")),
)


@frozen
class CompletionRequest(Asked):
    include_usage: bool = False  # at the end of the stream


def parse_request(body: bytes, model: str, provider: str = "openai") -> CompletionRequest:
    """Parse a request; ``model`` is used if it names none. Slow if ``body`` is large.

    Raises :class:`BadRequest`, also for parameters that ``provider`` doesn't support.
    """
    asked = _build_request(read_fields(body), model)
    check_supported(asked.question.sampling, provider, {})
    return asked


def _build_request(request: Fields, model: str) -> CompletionRequest:
    if (wanted := request.whole("n")) not in (None, 1):
        raise Mistake("n", str(Unexpected(wanted, "1: one answer is all that can be had")))
    refuse_fields(request, REFUSED)
    if wrong := [each for each in request.array("modalities") if each != "text"]:
        raise Mistake("modalities", str(Unexpected(wrong[0], "text: answers are text")))
    system, messages = _conversation(request)
    tools, choice = _tools(request)
    options = request.object("stream_options")
    question = Question(
        model=request.text("model") or model,
        messages=messages,
        system=system,
        temperature=request.number("temperature", 2),
        max_tokens=request.whole("max_completion_tokens") or request.whole("max_tokens"),
        thinking_level=request.named("reasoning_effort", EFFORTS),
        tools=tools,
        tool_choice=choice,
        stop=_stop(request),
        response_schema=read_schema(request.object("response_format"), "json_schema"),
        sampling=_sampling(request),
        cache_key=request.text("prompt_cache_key"),
    )
    include_usage = options is not None and options.flag("include_usage")
    left_out = list_left_out(request, KNOWN)
    return CompletionRequest(question, request.flag("stream"), read_class(request), left_out, include_usage)


def read_class(request: Fields) -> LLMClass | None:
    """The class of a request by its ``service_tier``: flex is batch; others, also priority, are the agent's own."""
    return "batch" if request.data.get("service_tier") == "flex" else None


def _conversation(request: Fields) -> tuple[str | None, Sequence[Message]]:
    system, messages = split_system(
        [_message(message, message.required_text("role")) for message in request.objects("messages")]
    )
    said = "\n\n".join(system)
    if messages:
        return said or None, messages
    if not said:
        raise Mistake("messages", "expected at least one message")
    return None, [Message("user", said)]  # a model needs a user message


def _message(message: Fields, role: str) -> Message:
    match role:
        case "system" | "developer":
            text, _ = _content(message, images=False)
            return Message("system", text)
        case "user":
            text, images = _content(message, images=True)
            return Message("user", text, images)
        case "assistant":
            refuse_fields(message, REFUSED_IN_MESSAGES)
            text, _ = _content(message, images=False)
            return Message("assistant", text or message.text("refusal") or "", calls=_calls(message))
        case "tool":
            text, _ = _content(message, images=False)
            return Message("tool", text, answers=message.required_text("tool_call_id"))
    roles = ("system", "developer", "user", "assistant", "tool")
    raise Mistake(message.place("role"), str(Unexpected(role, *roles)))


def _content(message: Fields, images: bool) -> tuple[str, Sequence[Image]]:
    """The text of a message, with its parts concatenated, and its images."""
    content = message.data.get("content")
    if type(content) is str:
        return content, ()
    if content is None and message.data["role"] == "assistant":  # it may have called tools without text
        return "", ()
    if type(content) is not list:
        raise Mistake(message.place("content"), str(Unexpected(content, "a string", "an array of parts")))
    texts, shown = [], []
    for part in message.objects("content"):
        kind = part.required_text("type")
        if kind == "text":
            texts.append(part.text("text") or "")
        elif kind == "refusal":
            texts.append(part.text("refusal") or "")
        elif kind == "image_url" and images:
            source = part.required_object("image_url")
            shown.append(parse_image(source.required_text("url"), source.place("url")))
        else:
            raise Mistake(part.place("type"), str(Unexpected(kind, "text", *(["image_url"] if images else []))))
    return "".join(texts), shown


def parse_image(url: str, place: str) -> Image:
    """The image of a ``data:`` URL in the field at ``place``."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise Mistake(
            place, f"{Unexpected(url, 'data:image/png;base64, with the image after it')}: no image is fetched from here"
        )
    return decode_image(data, head.removeprefix("data:").partition(";")[0], place)


def _calls(message: Fields) -> Sequence[ToolCall]:
    """The calls of an assistant's message, the first with the thoughts that the vendor may want back with them."""
    calls = [_call(call) for call in message.objects("tool_calls")]
    return calls and sign_calls(message.data, calls)


def _call(call: Fields) -> ToolCall:
    function = call.object("function")
    if function is None:
        raise Mistake(call.place("function"), "required field missing: functions are the only tools")
    return parse_call(call, function, "id")


def parse_call(call: Fields, function: Fields, id_name: str) -> ToolCall:
    """A call with its id in the field ``id_name``, and its name and arguments in ``function``."""
    text = function.text("arguments") or "{}"
    arguments: Mapping[str, Any] | codec.Text
    try:
        arguments = parse_object(text.encode())
    except Invalid:
        arguments = read_arguments(text)
    extra = call.object("extra_content")
    google = extra.object("google") if extra is not None else None
    signature = google.text("thought_signature") if google is not None else None
    if signature is None or not signature.startswith(("[", "{")):  # else it is as it was given out here
        signature = sign_call(call.data)
    return ToolCall(call.required_text(id_name), function.called_name(), arguments, signature)


def _tools(request: Fields) -> tuple[Sequence[Tool], ToolChoice]:
    tools = []
    for tool in request.objects("tools"):
        if (kind := tool.text("type") or "function") != "function":
            raise Mistake(tool.place("type"), f"{Unexpected(kind, 'function')}: functions are the only tools")
        function = tool.required_object("function")
        parameters = function.object("parameters")
        schema = parameters.data if parameters is not None else {}
        description, strict = codec.Text(function.text("description") or ""), function.flag("strict")
        tools.append(Tool(function.required_text("name"), description, schema, strict))
    choice = request.data.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return tuple(tools), choice or "auto"
    if choice == "required" and tools:
        return tuple(tools), "required"
    chosen = request.object("tool_choice") if isinstance(choice, dict) else None
    if chosen is not None:  # only what it names is offered
        allowed = chosen.object("allowed_tools")
        functions = [each.object("function") for each in ([chosen] if allowed is None else allowed.objects("tools"))]
        names = {function.text("name") for function in functions if function is not None}
        named = tuple(tool for tool in tools if tool.name in names)
        if named:
            return named, "auto" if allowed is not None and allowed.text("mode") != "required" else "required"
    expected = ("none", "auto", "required", "a function that is in tools", "allowed_tools with such functions")
    raise Mistake("tool_choice", str(Unexpected(choice, *expected)))


def _stop(request: Fields) -> Sequence[str]:
    stop = request.data.get("stop")
    return check_stops([stop] if stop and type(stop) is str else stop, "stop", "some text")


def _sampling(request: Fields) -> Sampling:
    return Sampling(
        top_p=request.number("top_p", 1),
        seed=request.integer("seed", -(1 << 63), (1 << 63) - 1),
        presence_penalty=request.number("presence_penalty", 2, -2),
        frequency_penalty=request.number("frequency_penalty", 2, -2),
        logit_bias=_logit_bias(request),
        logprobs=request.choice("logprobs"),
        top_logprobs=request.integer("top_logprobs", 0, 20),
        verbosity=request.named("verbosity", VERBOSITIES),
        parallel_tool_calls=request.choice("parallel_tool_calls"),
    )


def _logit_bias(request: Fields) -> Mapping[str, float] | None:
    bias = request.object("logit_bias")
    if bias is None:
        return None
    if len(bias.data) > MAX_BIASES:
        raise Mistake("logit_bias", f"expected at most {MAX_BIASES} tokens")
    return {token: bias.number(token, 100, -100) or 0.0 for token in bias.data}
