"""Provider for OpenAI, through its SDK, and for compatible servers: vLLM, llama.cpp, Ollama."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import openai

from agentos.llm.settings import Timeouts
from agentos.llm.stream import Arriving, Nonsense, compact, words

from .account import ProviderAccount
from .provider import (
    Answer,
    Delta,
    Denied,
    FinishReason,
    Hear,
    Image,
    ProviderError,
    Question,
    Rejected,
    Tool,
    ToolCall,
    Usage,
)
from .transport import Transport

BASE_URL = "https://api.openai.com/v1"
FINISHED: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
STATUS = re.compile("[1-5][0-9][0-9]")
CODES = {"rate_limit_exceeded": 429, "invalid_api_key": 401}  # errors within a stream may have a name, not a status


class OpenAI:
    """A connection to OpenAI or a compatible server at ``base_url``. Make it in a thread: that takes 80 ms."""

    def __init__(self, account: ProviderAccount, base_url: str | None, timeouts: Timeouts) -> None:
        self._account = account
        self._genuine = urlsplit(base_url or BASE_URL).hostname == "api.openai.com"
        self._counts = True  # whether it may be asked to count tokens, which some servers refuse
        self._transport = Transport(account, timeouts)
        client = openai.OpenAI(
            api_key=account.key or "none",
            base_url=base_url or BASE_URL,
            max_retries=0,
            http_client=self._transport.composing,
        )
        self._completions = client.chat.completions

    async def answer(self, question: Question, hear: Hear) -> Answer:
        try:
            return await self._answer(question, hear)
        except Rejected as error:
            if not (self._counts and "stream_options" in str(error)):
                raise
            self._counts = False
        return await self._answer(question, hear)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _answer(self, question: Question, hear: Hear) -> Answer:
        arriving = Arriving(self._account, hear, self._read, logprobs=[] if question.sampling.logprobs else None)
        await self._transport.ask(partial(self._compose, question), arriving, self._refused)
        return arriving.answer(question)

    def _compose(self, question: Question) -> None:
        self._completions.create(stream=True, **self._request(question)).close()

    def _read(self, arriving: Arriving, piece: Mapping[str, Any]) -> Delta:
        """Parse one event; servers often omit fields or set them to null."""
        if error := piece.get("error"):
            code = str(error.get("code")) if isinstance(error, dict) else ""
            raise self._refusal(int(code) if STATUS.fullmatch(code) else CODES.get(code, 500), error)
        arriving.model = words(piece.get("model"), "the name of a model") or arriving.model
        choice = (piece.get("choices") or [{}])[0]
        delta, finish = choice.get("delta") or {}, words(choice.get("finish_reason"), "an end")
        if isinstance(logprobs := choice.get("logprobs"), dict):
            arriving.take_logprobs(logprobs.get("content"))
        text, refused = words(delta.get("content"), "a text"), words(delta.get("refusal"), "a refusal")
        unseen = len(words(delta.get("reasoning_content") or delta.get("reasoning"), "a thought"))
        unseen += sum(_take_call(part, arriving) for part in delta.get("tool_calls") or ())
        if refused:
            arriving.finish = "content_filter"
        elif finish and arriving.finish is None:
            if finish not in FINISHED:
                raise Nonsense(f"ended its answer with {finish}")
            arriving.finish = FINISHED[finish]
        return Delta(text + refused, unseen, _usage(piece.get("usage")))

    def _refused(self, status: int, said: object, after: float | None) -> ProviderError:
        return self._refusal(status, said.get("error", said) if isinstance(said, dict) else said, after)

    def _refusal(self, status: int, error: object, after: float | None = None) -> ProviderError:
        told = error if isinstance(error, dict) else {"message": error}
        if "insufficient_quota" in (told.get("code"), told.get("type")):  # comes as 429, but waiting won't help
            text = f"{self._account.vendor}: the account of the key in {self._account.variable} is used up"
            return Denied(text, status=402)  # 402 is what it means
        return self._account.refusal(status, told.get("message") or told, after)

    def _request(self, question: Question) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": question.model,
            "messages": [*_messages(question)],
            "temperature": question.temperature,
            # OpenAI's reasoning models accept only the one, most other servers only the other.
            "max_completion_tokens" if self._genuine else "max_tokens": question.max_tokens,
            "reasoning_effort": question.thinking_level,
            "stop": list(question.stop) or None,
            "stream_options": {"include_usage": True} if self._counts else None,
            "tools": [*map(_declared, question.tools)] or None,
            "tool_choice": question.tool_choice if question.tools else None,
            "response_format": _format(question.response_schema),
            **question.sampling.given,
        }
        return {name: value for name, value in request.items() if value is not None}


def _messages(question: Question) -> Iterator[dict[str, Any]]:
    """Convert the conversation. A tool result can't contain images: they follow as a user message after all results."""
    if question.system is not None:
        yield {"role": "system", "content": question.system}
    shown: list[Image] = []
    for message in question.messages:
        if message.role != "tool" and shown:
            yield {"role": "user", "content": _content("", shown)}
            shown = []
        if message.role == "tool":
            yield {"role": "tool", "tool_call_id": message.answers or "", "content": message.text}
            shown.extend(message.images)
        elif message.calls:
            yield {"role": "assistant", "content": message.text or None, "tool_calls": [*map(_called, message.calls)]}
        else:
            yield {"role": message.role, "content": _content(message.text, message.images)}
    if shown:
        yield {"role": "user", "content": _content("", shown)}


def _content(text: str, images: Sequence[Image]) -> str | list[dict[str, Any]]:
    if not images:
        return text
    urls = (f"data:{image.mime_type};base64,{base64.b64encode(image.data).decode()}" for image in images)
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    return [*parts, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


def _called(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": compact(dict(call.arguments))}
    return {"id": call.id, "type": "function", "function": function}


def _declared(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": {name: value for name, value in function.items() if value}}


def _format(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": _closed(schema)}}


def _closed(schema: object) -> bool:
    """Whether each object in a schema has exactly the properties it names: required for strict mode."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) or schema.get("type") == "object":
            named = set(properties or ())
            if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != named:
                return False
        return all(map(_closed, schema.values()))
    return all(map(_closed, schema)) if isinstance(schema, list) else True


def _take_call(part: Mapping[str, Any], arriving: Arriving) -> int:
    """Take a piece of a tool call; returns how many characters it has."""
    function, index = part.get("function") or {}, part.get("index")
    name, arguments = words(function.get("name"), "the name of a tool"), words(function.get("arguments"), "arguments")
    arriving.piece_of_call(index if isinstance(index, int) else None, words(part.get("id"), "an id"), name, arguments)
    return len(name) + len(arguments)


def _usage(counted: object) -> Usage | None:
    if not isinstance(counted, dict) or counted.get("prompt_tokens") is None:
        return None
    details = counted.get("completion_tokens_details")
    thinking = details.get("reasoning_tokens") if isinstance(details, dict) else 0
    told = Usage(counted["prompt_tokens"], counted.get("completion_tokens"), thinking)
    thinking = min(told.thinking, told.output)  # completion_tokens includes them
    return Usage(told.input, told.output - thinking, thinking)
