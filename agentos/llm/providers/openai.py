"""Provider for OpenAI, through its SDK, and for compatible servers: vLLM, llama.cpp, Ollama."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import openai

from agentos.llm.embeddings import read_openai
from agentos.llm.settings import Timeouts
from agentos.llm.stream import AnswerBuilder, MalformedResponse, compact_json, text_field
from agentos_sdk.values import Tool, ToolCall, Usage

from .account import ProviderAccount
from .base64_parts import Base64Parts
from .provider import (
    Answer,
    Delta,
    Denied,
    FinishReason,
    Image,
    OnDelta,
    Provider,
    ProviderError,
    Question,
    Rejected,
    counted_usage,
)
from .transport import Transport

BASE_URL = "https://api.openai.com/v1"
FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
STATUS = re.compile("[1-5][0-9][0-9]")
CODES = {"rate_limit_exceeded": 429, "invalid_api_key": 401}  # errors within a stream may have a name, not a status


class OpenAI(Provider):
    """A connection to OpenAI or a compatible server at ``base_url``. Make it in a thread: that takes 80 ms."""

    def __init__(self, account: ProviderAccount, base_url: str | None, timeouts: Timeouts) -> None:
        self._account = account
        self._is_openai = urlsplit(base_url or BASE_URL).hostname == "api.openai.com"
        self._may_count_tokens = True  # whether it may be asked to count tokens, which some servers refuse
        self._transport = Transport(account, timeouts)
        client = openai.OpenAI(
            api_key=account.key or "none",
            base_url=base_url or BASE_URL,
            max_retries=0,
            http_client=self._transport.composing,
        )
        self._completions = client.chat.completions
        self._embeddings = client.embeddings.with_raw_response  # doesn't read what isn't there

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        try:
            return await self._answer(question, on_delta)
        except Rejected as error:
            if not (self._may_count_tokens and "stream_options" in str(error)):
                raise
            self._may_count_tokens = False
        return await self._answer(question, on_delta)

    async def embed(self, question: Question, on_delta: OnDelta) -> Answer:
        compose = partial(self._compose_embeddings, question)
        return await self._transport.embed(compose, read_openai, question, self._error_of_body, on_delta)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _answer(self, question: Question, on_delta: OnDelta) -> Answer:
        builder = AnswerBuilder(
            self._account, on_delta, self._parse_event, logprobs=[] if question.sampling.logprobs else None
        )
        parts = Base64Parts()
        await self._transport.send(partial(self._compose, question, parts), builder, self._error_of_body, parts)
        return builder.answer(question)

    def _compose(self, question: Question, parts: Base64Parts) -> None:
        self._completions.create(stream=True, **self._request(question, parts)).close()

    def _compose_embeddings(self, question: Question) -> None:
        texts = [message.text for message in question.messages]
        size = {} if question.dimensions is None else {"dimensions": question.dimensions}
        create: Any = self._embeddings.create  # base64: a quarter of the bytes of numbers
        create(model=question.model, input=texts, encoding_format="base64", **size)

    def _parse_event(self, builder: AnswerBuilder, piece: Mapping[str, Any]) -> Delta:
        """Parse one event; servers often omit fields or set them to null."""
        if error := piece.get("error"):
            code = str(error.get("code")) if isinstance(error, dict) else ""
            raise self._error_of(int(code) if STATUS.fullmatch(code) else CODES.get(code, 500), error)
        builder.model = text_field(piece.get("model"), "the name of a model") or builder.model
        choice = (piece.get("choices") or [{}])[0]
        delta, finish = choice.get("delta") or {}, text_field(choice.get("finish_reason"), "an end")
        if isinstance(logprobs := choice.get("logprobs"), dict):
            builder.add_logprobs(logprobs.get("content"))
        text, refused = text_field(delta.get("content"), "a text"), text_field(delta.get("refusal"), "a refusal")
        unseen = len(text_field(delta.get("reasoning_content") or delta.get("reasoning"), "a thought"))
        unseen += sum(_add_call_piece(part, builder) for part in delta.get("tool_calls") or ())
        if refused:
            builder.finish = "content_filter"
        elif finish and builder.finish is None:
            if finish not in FINISH_REASONS:
                raise MalformedResponse(f"ended its answer with {finish}")
            builder.finish = FINISH_REASONS[finish]
        return Delta(text + refused, unseen, _usage(piece.get("usage")))

    def _error_of_body(self, status: int, body: object, after: float | None) -> ProviderError:
        return self._error_of(status, body.get("error", body) if isinstance(body, dict) else body, after)

    def _error_of(self, status: int, error: object, after: float | None = None) -> ProviderError:
        details = error if isinstance(error, dict) else {"message": error}
        if "insufficient_quota" in (details.get("code"), details.get("type")):  # comes as 429, but waiting won't help
            text = f"{self._account.vendor}: the account of the key in {self._account.variable} is used up"
            return Denied(text, status=402)  # 402 is what it means
        return self._account.error_of_status(status, details.get("message") or details, after)

    def _request(self, question: Question, parts: Base64Parts) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": question.model,
            "messages": [*_messages(question, parts)],
            "temperature": question.temperature,
            # OpenAI's reasoning models accept only the one, most other servers only the other.
            "max_completion_tokens" if self._is_openai else "max_tokens": question.max_tokens,
            "reasoning_effort": question.thinking_level,
            "stop": list(question.stop) or None,
            "stream_options": {"include_usage": True} if self._may_count_tokens else None,
            "tools": [*map(_tool_declaration, question.tools)] or None,
            "tool_choice": question.tool_choice if question.tools else None,
            "response_format": _format(question.response_schema),
            **question.sampling.given,
        }
        return {name: value for name, value in request.items() if value is not None}


def _messages(question: Question, parts: Base64Parts) -> Iterator[dict[str, Any]]:
    """Convert the conversation. A tool result can't contain images: they follow as a user message after all results."""
    if question.system is not None:
        yield {"role": "system", "content": question.system}
    pending_images: list[Image] = []
    for message in question.messages:
        if message.role != "tool" and pending_images:
            yield {"role": "user", "content": _content("", pending_images, parts)}
            pending_images = []
        if message.role == "tool":
            yield {"role": "tool", "tool_call_id": message.answers or "", "content": message.text}
            pending_images.extend(message.images)
        elif message.calls:
            yield {
                "role": "assistant",
                "content": message.text or None,
                "tool_calls": [*map(_call_message, message.calls)],
            }
        else:
            yield {"role": message.role, "content": _content(message.text, message.images, parts)}
    if pending_images:
        yield {"role": "user", "content": _content("", pending_images, parts)}


def _content(text: str, images: Sequence[Image], parts: Base64Parts) -> str | list[dict[str, Any]]:
    if not images:
        return text
    urls = (f"data:{image.mime_type};base64,{parts.add(image.data)}" for image in images)
    said: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    return [*said, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


def _call_message(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": compact_json(dict(call.arguments))}
    return {"id": call.id, "type": "function", "function": function}


def _tool_declaration(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": {name: value for name, value in function.items() if value}}


def _format(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": _is_closed(schema)}}


def _is_closed(schema: object) -> bool:
    """Whether each object in a schema has exactly the properties it names: required for strict mode."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) or schema.get("type") == "object":
            named = set(properties or ())
            if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != named:
                return False
        return all(map(_is_closed, schema.values()))
    return all(map(_is_closed, schema)) if isinstance(schema, list) else True


def _add_call_piece(part: Mapping[str, Any], builder: AnswerBuilder) -> int:
    """Take a piece of a tool call; returns how many characters it has."""
    function, index = part.get("function") or {}, part.get("index")
    id_, name = text_field(part.get("id"), "an id"), text_field(function.get("name"), "the name of a tool")
    arguments = text_field(function.get("arguments"), "arguments")
    builder.add_call_piece(index if isinstance(index, int) else None, id_, name, arguments)
    return len(name) + len(arguments)


def _usage(counted: object) -> Usage | None:
    if not isinstance(counted, dict) or counted.get("prompt_tokens") is None:
        return None
    details = counted.get("completion_tokens_details")
    thinking = details.get("reasoning_tokens") if isinstance(details, dict) else 0
    reported = counted_usage(counted["prompt_tokens"], counted.get("completion_tokens"), thinking)
    thinking = min(reported.thinking, reported.output)  # completion_tokens includes them
    return Usage(reported.input, reported.output - thinking, thinking)
