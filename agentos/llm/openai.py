"""OpenAI by its own SDK, and with it every server that speaks the same protocol: vLLM, llama.cpp, Ollama."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import openai

from .arriving import Arriving, HalfCall, compact, http_client
from .provider import (
    Answer,
    Delta,
    Denied,
    Failing,
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
from .settings import Timeouts
from .vendor import Account, seconds_of

BASE_URL = "https://api.openai.com/v1"
FINISHED: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
CODES = {"rate_limit_exceeded": 429, "invalid_api_key": 401}  # of errors within a stream, where they are no numbers


class OpenAI:
    """A connection to OpenAI or to a compatible server at ``base_url``. Made in a thread, for it takes 80 ms."""

    def __init__(self, account: Account, base_url: str | None, timeouts: Timeouts) -> None:
        self._account = account
        self._genuine = urlsplit(base_url or BASE_URL).hostname == "api.openai.com"
        self._counts = True  # whether it may be asked to count tokens, which some servers refuse
        self._http = http_client(timeouts)
        client = openai.AsyncOpenAI(
            api_key=account.key or "none", base_url=base_url or BASE_URL, max_retries=0, http_client=self._http
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
        await self._http.aclose()

    async def _answer(self, question: Question, hear: Hear) -> Answer:
        arriving = Arriving(hear, self._read)
        request = self._request(question)
        with self._account.errors(arriving):
            try:
                await arriving.listen(lambda: self._completions.create(stream=True, **request))
            except openai.APIStatusError as error:
                raise self._refusal(error.status_code, error.body, seconds_of(error.response.headers)) from None
            except openai.APIConnectionError as error:
                raise error.__cause__ or error from None
        return arriving.answer(self._account.vendor, question)

    def _read(self, arriving: Arriving, piece: Mapping[str, Any]) -> Delta:
        """Servers leave out a field, or put null in its place, wherever they can."""
        if error := piece.get("error"):
            code = str(error.get("code")) if isinstance(error, dict) else ""
            raise self._refusal(int(code) if code.isdecimal() else CODES.get(code, 500), error)
        arriving.model = piece.get("model") or arriving.model
        choice = (piece.get("choices") or [{}])[0]
        delta, finish = choice.get("delta") or {}, choice.get("finish_reason")
        text, refused = delta.get("content") or "", delta.get("refusal") or ""
        unseen = len(delta.get("reasoning_content") or delta.get("reasoning") or "")
        unseen += sum(_take_call(part, arriving.halves) for part in delta.get("tool_calls") or ())
        if refused:
            arriving.finish = "content_filter"
        elif finish and arriving.finish is None:
            if finish not in FINISHED:
                raise Failing(f"{self._account.vendor} ended its answer with {self._account.clean(finish)}")
            arriving.finish = FINISHED[finish]
        return Delta(text + refused, unseen, _usage(piece.get("usage")))

    def _refusal(self, status: int, error: object, after: float | None = None) -> ProviderError:
        told = error if isinstance(error, dict) else {"message": error}
        if "insufficient_quota" in (told.get("code"), told.get("type")):  # comes as 429, but waiting won't help
            return Denied(f"{self._account.vendor}: the account of the key in {self._account.variable} is used up")
        return self._account.refusal(status, told.get("message") or told, after)

    def _request(self, question: Question) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": question.model,
            "messages": [*_messages(question)],
            "temperature": question.temperature,
            # OpenAI's models that think take the one, most other servers know only the other.
            "max_completion_tokens" if self._genuine else "max_tokens": question.max_tokens,
            "reasoning_effort": question.thinking_level,
            "stop": list(question.stop) or None,
            "stream_options": {"include_usage": True} if self._counts else None,
            "tools": [*map(_declared, question.tools)] or None,
            "tool_choice": question.tool_choice if question.tools else None,
            "response_format": _format(question.response_schema),
        }
        return {name: value for name, value in request.items() if value is not None}


def _messages(question: Question) -> Iterator[dict[str, Any]]:
    """The conversation. A tool can't answer with images here: they follow as the user's, after all tools' answers."""
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
    """Whether every object in a schema has just the properties it names: only such ones may be asked for strictly."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) or schema.get("type") == "object":
            named = set(properties or ())
            if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != named:
                return False
        return all(map(_closed, schema.values()))
    return all(map(_closed, schema)) if isinstance(schema, list) else True


def _take_call(part: Mapping[str, Any], halves: list[HalfCall]) -> int:
    """Put a piece of a tool call where it belongs; how many characters it has.

    Some servers don't number the calls, some give all of them the same number: then the id tells them apart.
    """
    function = part.get("function") or {}
    name, arguments = function.get("name") or "", function.get("arguments") or ""
    index, id_ = part.get("index"), part.get("id") or ""
    half = next((half for half in reversed(halves) if half.index == index and id_ in ("", half.id)), None)
    if half is None or (index is None and name):
        half = HalfCall(index, id_)
        halves.append(half)
    half.name = half.name or name
    half.arguments += arguments
    return len(name) + len(arguments)


def _usage(counted: Mapping[str, Any] | None) -> Usage | None:
    if not counted or counted.get("prompt_tokens") is None:
        return None
    generated = counted.get("completion_tokens") or 0
    thinking = (counted.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return Usage(counted["prompt_tokens"], max(0, generated - thinking), thinking)
