"""Provider for Gemini, through Google's SDK."""

import base64
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from google import genai
from google.genai import types

from agentos.llm.answers.called_tools import GENERATED_ID_PREFIX, arguments_text, new_id, object_of, read_arguments
from agentos.llm.answers.embeddings import read_gemini
from agentos.llm.answers.json_mode import is_any_object
from agentos.llm.answers.sampling import LEVELS, Effort
from agentos.llm.settings import Timeouts
from agentos.llm.stream import AnswerBuilder, compact_json, id_field, text_field
from agentos_sdk.values import ThinkingLevel, Tool, ToolCall, ToolChoice, Usage

from .account import ProviderAccount, parse_seconds
from .prompts.base64_parts import Base64Parts
from .prompts.past_calls import accepted_messages, as_user
from .prompts.thoughts import WrongSignature
from .provider import (
    Answer,
    Delta,
    Message,
    OnDelta,
    Provider,
    ProviderError,
    Question,
    counted_usage,
)
from .transport import Transport

CALLING_MODES: Mapping[ToolChoice, types.FunctionCallingConfigMode] = {
    "auto": types.FunctionCallingConfigMode.AUTO,
    "none": types.FunctionCallingConfigMode.NONE,
    "required": types.FunctionCallingConfigMode.ANY,
}
THINKING_BUDGETS: Mapping[ThinkingLevel, int] = {"low": 1024, "medium": 8192, "high": 24576}  # tokens, without levels
OTHERS = {"inlineData", "fileData", "executableCode", "codeExecutionResult"}  # parts that an answer has no place for
BASE_URL = "https://generativelanguage.googleapis.com"
MAX_PARSED_RESULT = 64 << 10  # characters of a tool's result that are parsed at most


class Gemini(Provider):
    """A connection to Gemini or a compatible server at ``base_url``. Make it in a thread: that takes 80 ms."""

    def __init__(self, account: ProviderAccount, base_url: str | None, timeouts: Timeouts) -> None:
        self._account = account
        self._transport = Transport(account, base_url or BASE_URL, timeouts)
        self._client = genai.Client(
            vertexai=False,
            api_key=account.key or "none",
            http_options=types.HttpOptions(
                base_url=base_url,
                httpx_client=self._transport.composing,
                httpx_async_client=self._transport.http,  # else the SDK would make one and read certificates for it
                async_client_args={"ssl": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)},  # of WebSockets, which aren't used
            ),
        )

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        builder = AnswerBuilder(self._account, on_delta, self._parse_event, self._error_of, "candidates")
        parts = Base64Parts()
        await self._transport.send(partial(self._compose, question, parts), builder, self._error_of, parts)
        return builder.answer(question)

    async def embed(self, question: Question, on_delta: OnDelta) -> Answer:
        compose = partial(self._compose_embeddings, question)
        return await self._transport.embed(compose, read_gemini, question, self._error_of, on_delta)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _compose(self, question: Question, parts: Base64Parts) -> None:
        for _ in self._client.models.generate_content_stream(
            model=question.model, contents=_contents(question.messages, parts), config=_config(question)
        ):
            raise AssertionError("the SDK has found what is not there")

    def _compose_embeddings(self, question: Question) -> None:
        texts: list[types.ContentUnion] = [
            types.Content(parts=[types.Part(text=each.text)]) for each in question.messages
        ]
        config = types.EmbedContentConfig(output_dimensionality=question.dimensions)
        self._client.models.embed_content(model=question.model, contents=texts, config=config)

    def _parse_event(self, builder: AnswerBuilder, piece: Mapping[str, Any]) -> Delta:
        builder.model = text_field(piece.get("modelVersion"), "the name of a model") or builder.model
        candidate = builder.first_of(piece.get("candidates"))
        text, unseen = [], 0
        for part in (candidate.get("content") or {}).get("parts") or ():
            if call := part.get("functionCall"):
                builder.calls.add(self._read_call(call, part.get("thoughtSignature")))
                unseen += len(compact_json(call))
            elif part.get("thought"):
                unseen += len(text_field(part.get("text"), "a thought"))
            else:
                text.append(text_field(part.get("text"), "a text"))
                for name in OTHERS & part.keys():
                    builder.pass_over(name)
        if finish := text_field(candidate.get("finishReason"), "an end"):
            builder.end_with(finish)
        elif (piece.get("promptFeedback") or {}).get("blockReason"):
            builder.finish = "content_filter"
        return Delta("".join(text), unseen, _usage(piece.get("usageMetadata")))

    def _read_call(self, call: Mapping[str, Any], signature: object) -> ToolCall:
        arguments = read_arguments(arguments_text(call.get("args")))
        id_, name = id_field(call.get("id")), text_field(call.get("name"), "the name of a tool")
        return ToolCall(id_ or new_id(), name, arguments, text_field(signature, "a signature") or None)

    def _error_of(self, status: int, body: object, after: float | None = None) -> ProviderError:
        if isinstance(body, list) and len(body) == 1:  # an error may come in a list, as a stream is a list of responses
            body = body[0]
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(error, dict):
            return self._account.error_of_status(status, error or body, after)
        details = [detail for detail in error.get("details") or () if isinstance(detail, dict)]
        if any(detail.get("reason") == "API_KEY_INVALID" for detail in details):
            return self._account.access_denied(status)  # although the status is 400
        for detail in details:
            if "retryDelay" in detail:  # Google's format for a duration: "34.5s"
                after = parse_seconds(str(detail["retryDelay"]).removesuffix("s"))
        return self._account.error_of_status(status, error.get("message") or error.get("status"), after)


def _contents(messages: Sequence[Message], encoded: Base64Parts) -> list[types.Content]:
    """Convert the conversation; the results of several tools go into one turn, as their calls came in one."""
    messages = [as_user(each) if each.role == "system" else each for each in accepted_messages(messages)]
    names = {call.id: call.name for message in messages for call in message.calls}
    turns: list[tuple[str, list[types.Part]]] = []
    before = None
    for message in messages:
        if not message.role == before == "tool":
            turns.append(("model" if message.role == "assistant" else "user", []))
        turns[-1][1].extend(_parts(message, names, encoded))
        before = message.role
    return [types.Content(role=role, parts=parts) for role, parts in turns]


def _parts(message: Message, names: Mapping[str, str], encoded: Base64Parts) -> Iterator[types.Part]:
    if message.answers is not None:
        name = names.get(message.answers, message.answers)
        response = types.FunctionResponse(id=_vendor_id(message.answers), name=name, response=_object(message.text))
        yield types.Part(function_response=response)
    elif message.text or not (message.images or message.calls):
        yield types.Part(text=message.text)
    for image in message.images:
        token = base64.b64decode(encoded.add(image.data))  # which the SDK encodes
        yield types.Part(inline_data=types.Blob(data=token, mime_type=image.mime_type))
    for call in message.calls:
        yield types.Part(
            function_call=types.FunctionCall(id=_vendor_id(call.id), name=call.name, args=object_of(call.arguments)),
            thought_signature=_signature(call.signature),
        )


def _signature(given: str | None) -> bytes | None:
    """A signature as bytes; those of other vendors, which are JSON, are left out."""
    if not given or given.startswith(("[", "{")):
        return None
    try:
        return base64.b64decode(given, validate=True)
    except ValueError:
        raise WrongSignature from None


def _object(text: str) -> dict[str, Any]:
    """A tool's result as the object that Gemini requires; large ones stay text: parsing could take seconds."""
    try:
        value = json.loads(text) if len(text) <= MAX_PARSED_RESULT else text
    except (ValueError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"output": value}


def _vendor_id(id: str) -> str | None:
    return None if id.startswith(GENERATED_ID_PREFIX) else id


def _config(question: Question) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(
        system_instruction=question.system,
        temperature=question.temperature,
        top_p=question.sampling.top_p,
        seed=question.sampling.seed,
        presence_penalty=question.sampling.presence_penalty,
        frequency_penalty=question.sampling.frequency_penalty,
        max_output_tokens=question.max_tokens,
        stop_sequences=list(question.stop) or None,
        thinking_config=_thinking(question.model, question.thinking_level),
        tools=[types.Tool(function_declarations=[_tool_declaration(tool) for tool in question.tools])]
        if question.tools
        else None,
        tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(mode=CALLING_MODES[question.tool_choice])
        )
        if question.tools
        else None,
        response_mime_type="application/json" if question.response_schema is not None else None,
        response_json_schema=None if is_any_object(question.response_schema) else question.response_schema,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        automatic_continuation=False,  # it would send another request by itself, bypassing budgets and deadlines
    )


def _tool_declaration(tool: Tool) -> types.FunctionDeclaration:
    return types.FunctionDeclaration(
        name=tool.name, description=tool.description or None, parameters_json_schema=dict(tool.parameters) or None
    )


def _thinking(model: str, effort: Effort | None) -> types.ThinkingConfig | None:
    """Gemini 3 and later have levels and 2.5 has budgets; older models don't think and reject the option."""
    model = model.removeprefix("models/")
    if effort is None or model.startswith(("gemini-1", "gemini-2.0")):
        return None
    if model.startswith("gemini-2.5"):
        return types.ThinkingConfig(thinking_budget=0 if effort == "none" else THINKING_BUDGETS[LEVELS[effort]])
    if effort in ("none", "minimal"):
        return types.ThinkingConfig(thinking_level=types.ThinkingLevel.MINIMAL)
    return types.ThinkingConfig(thinking_level=types.ThinkingLevel(LEVELS[effort].upper()))


def _usage(counted: object) -> Usage | None:
    if not isinstance(counted, dict) or counted.get("promptTokenCount") is None:
        return None
    names = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount")
    return counted_usage(*map(counted.get, names)) + counted_usage(counted.get("toolUsePromptTokenCount"))
