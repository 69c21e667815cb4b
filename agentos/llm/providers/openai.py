"""Provider for OpenAI, through its SDK, and for compatible servers: vLLM, llama.cpp, Ollama."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import openai
from attrs import evolve
from msgspec.structs import replace

from agentos.llm.answers.called_tools import arguments_text, index_of, object_of
from agentos.llm.answers.embeddings import read_openai
from agentos.llm.answers.json_mode import instruct, is_any_object, mentions_json
from agentos.llm.answers.vendor_errors import find_error, status_of
from agentos.llm.settings import Timeouts
from agentos.llm.stream import AnswerBuilder, compact_json, id_field, text_field
from agentos_sdk.values import Tool, ToolCall, Usage

from .account import ProviderAccount
from .prompts.base64_parts import Base64Parts
from .prompts.past_calls import accepted_messages, as_user
from .prompts.thoughts import Thoughts, call_fields, message_fields, sign_call
from .provider import (
    Answer,
    Delta,
    Denied,
    Heard,
    Image,
    OnDelta,
    Provider,
    ProviderError,
    Question,
    Rejected,
    counted_usage,
    details_of,
    first_count,
)
from .transport import Transport

BASE_URL = "https://api.openai.com/v1"
OTHERS = ("images", "audio")  # fields of a message that an answer has no place for
KNOWN_PARTS = {"text", "refusal", "thinking", "reasoning"}
REFUSED_THOUGHTS = re.compile(  # in the refusal of a question with thoughts of an earlier answer
    "reasoning|thinking_blocks|extra_content|provider_specific|extra (inputs|fields)|additional propert"
    "|un(known|recognized|expected|supported)[^.]{0,20}(field|name|param|key|propert|argument)",
    re.IGNORECASE,
)


class OpenAI(Provider):
    """A connection to OpenAI or a compatible server at ``base_url``. Make it in a thread: that takes 80 ms."""

    def __init__(self, account: ProviderAccount, base_url: str | None, timeouts: Timeouts) -> None:
        self._account = account
        self._is_openai = urlsplit(base_url or BASE_URL).hostname == "api.openai.com"
        self._takes_thoughts = not self._is_openai  # whether its thoughts go back with their tool calls
        self._takes_system = True  # whether a system message may stand within the conversation
        self._may_count_tokens = True  # whether it may be asked to count tokens, which some servers refuse
        self._transport = Transport(account, base_url or BASE_URL, timeouts)
        client = openai.OpenAI(
            api_key=account.key or "none",
            base_url=base_url or BASE_URL,
            max_retries=0,
            http_client=self._transport.composing,
        )
        self._completions = client.chat.completions
        self._embeddings = client.embeddings.with_raw_response  # doesn't read what isn't there

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        heard = Heard(on_delta)
        try:
            return await self._answer(question, heard)
        except Rejected as error:
            if heard.any:
                raise
            refusal = error
        if self._may_count_tokens and "stream_options" in str(refusal):
            self._may_count_tokens = False
            return await self.answer(question, on_delta)
        if self._takes_system and _has_system(question) and "system" in str(refusal).lower():
            self._takes_system = False  # as chat templates of some models want it
            try:
                return await self.answer(question, on_delta)
            except Rejected:
                self._takes_system = True  # it wasn't that
                raise
        if self._takes_thoughts and _has_thoughts(question) and REFUSED_THOUGHTS.search(str(refusal)):
            self._takes_thoughts = False  # they are another server's
            try:
                return await self._answer(question, on_delta)
            except Rejected:
                self._takes_thoughts = True  # it wasn't that
        raise refusal

    async def embed(self, question: Question, on_delta: OnDelta) -> Answer:
        compose = partial(self._compose_embeddings, question)
        return await self._transport.embed(compose, read_openai, question, self._error_of_body, on_delta)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _answer(self, question: Question, on_delta: OnDelta) -> Answer:
        thoughts = Thoughts()
        builder = AnswerBuilder(
            self._account,
            on_delta,
            partial(self._parse_event, thoughts),
            self._error_of_body,
            "choices",
            logprobs=[] if question.sampling.logprobs else None,
        )
        parts = Base64Parts()
        await self._transport.send(partial(self._compose, question, parts), builder, self._error_of_body, parts)
        answer = builder.answer(question)
        return evolve(answer, calls=tuple(thoughts.sign(answer.calls)))

    def _compose(self, question: Question, parts: Base64Parts) -> None:
        self._completions.create(stream=True, **self._request(question, parts)).close()

    def _compose_embeddings(self, question: Question) -> None:
        texts = [message.text for message in question.messages]
        size = {} if question.dimensions is None else {"dimensions": question.dimensions}
        create: Any = self._embeddings.create  # base64: a quarter of the bytes of numbers
        create(model=question.model, input=texts, encoding_format="base64", **size)

    def _parse_event(self, thoughts: Thoughts, builder: AnswerBuilder, piece: Mapping[str, Any]) -> Delta:
        """Parse one event; servers often omit fields or set them to null."""
        builder.model = text_field(piece.get("model"), "the name of a model") or builder.model
        choice = builder.first_of(piece.get("choices"))
        if error := choice.get("error"):
            raise self._error_of(status_of(error) or 500, error)
        delta = choice.get("delta") or {}
        if not delta and not builder.has_any:  # a server that doesn't stream, or sends the end of its own stream
            delta = choice.get("message") or {"content": choice.get("text")}
        if isinstance(logprobs := choice.get("logprobs"), dict):
            builder.add_logprobs(logprobs.get("content"))
        text, thought = _read_content(builder, delta.get("content"))
        for name in OTHERS:
            if delta.get(name):
                builder.pass_over(name)
        refused = text_field(delta.get("refusal"), "a refusal")
        unseen = thought + thoughts.add(delta)
        unseen += sum(_add_call_piece(part, builder) for part in delta.get("tool_calls") or ())
        if function := delta.get("function_call"):  # how calls were sent before there were several
            unseen += _add_call_piece({"index": 0, "function": function}, builder)
        if refused:
            builder.finish = "content_filter"
        elif finish := text_field(choice.get("finish_reason"), "an end"):
            builder.end_with(finish)
        return Delta(text + refused, unseen, _usage(piece.get("usage")))

    def _error_of_body(self, status: int, body: object, after: float | None) -> ProviderError:
        return self._error_of(status, (find_error(body) or body) if isinstance(body, dict) else body, after)

    def _error_of(self, status: int, error: object, after: float | None = None) -> ProviderError:
        details = error if isinstance(error, dict) else {}
        if "insufficient_quota" in (details.get("code"), details.get("type")):  # comes as 429, but waiting won't help
            text = f"{self._account.vendor}: the account of the key in {self._account.variable} is used up"
            return Denied(text, status=402)  # 402 is what it means
        return self._account.error_of_status(status, error, after)

    def _request(self, question: Question, parts: Base64Parts) -> dict[str, Any]:
        if not self._takes_system:
            messages = [as_user(each) if each.role == "system" else each for each in question.messages]
            question = replace(question, messages=messages)
        request: dict[str, Any] = {
            "model": question.model,
            "messages": [*_messages(question, parts, self._takes_thoughts, self._is_openai)],
            "temperature": question.temperature,
            # OpenAI's reasoning models accept only the one, most other servers only the other.
            "max_completion_tokens" if self._is_openai else "max_tokens": question.max_tokens,
            "reasoning_effort": question.thinking_level,
            "stop": list(question.stop) or None,
            "stream_options": {"include_usage": True} if self._may_count_tokens else None,
            "tools": [*map(_tool_declaration, question.tools)] or None,
            "tool_choice": question.tool_choice if question.tools else None,
            "response_format": _format(question.response_schema),
            "prompt_cache_key": question.cache_key if self._is_openai else None,
            **question.sampling.given,
        }
        return {name: value for name, value in request.items() if value is not None}


def _messages(
    question: Question, parts: Base64Parts, with_thoughts: bool, takes_text: bool
) -> Iterator[dict[str, Any]]:
    """Convert the conversation. A tool result can't contain images: they follow as a user message after all results.

    ``takes_text``: arguments that are no JSON go back as they are, which servers such as vLLM and Ollama refuse.
    """
    system = question.system
    if is_any_object(question.response_schema) and not mentions_json(question):
        system = instruct(question)
    if system is not None:
        yield {"role": "system", "content": system}
    pending_images: list[Image] = []
    for message in accepted_messages(question.messages):
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
                **(message_fields(message.calls[0].signature) if with_thoughts else {}),
                "tool_calls": [_call_message(call, with_thoughts, takes_text) for call in message.calls],
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


def _call_message(call: ToolCall, with_thoughts: bool, takes_text: bool) -> dict[str, Any]:
    is_text = isinstance(call.arguments, str) and takes_text
    arguments = call.arguments if is_text else compact_json(object_of(call.arguments))
    function = {"name": call.name, "arguments": arguments}
    thoughts = call_fields(call.signature) if with_thoughts else {}
    return {"id": call.id, "type": "function", "function": function, **thoughts}


def _has_system(question: Question) -> bool:
    return any(message.role == "system" for message in question.messages)


def _has_thoughts(question: Question) -> bool:
    calls = (call for message in question.messages for call in message.calls)
    return any(call.signature and not call.signature.startswith("[") for call in calls)


def _tool_declaration(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    declared = {**function, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in declared.items() if value}}


def _format(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    if is_any_object(schema):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": _is_closed(schema)}}


def _is_closed(schema: object) -> bool:
    """Whether each object in a schema has exactly the properties it names: required for strict mode."""
    if isinstance(schema, Mapping):
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, Mapping) or schema.get("type") == "object":
            named = set(properties if isinstance(properties, Mapping) else ())
            listed = {each for each in required if isinstance(each, str)} if isinstance(required, list) else set()
            if schema.get("additionalProperties") is not False or listed != named:
                return False
        return all(map(_is_closed, schema.values()))
    return all(map(_is_closed, schema)) if isinstance(schema, list) else True


def _read_content(builder: AnswerBuilder, content: object) -> tuple[str, int]:
    """The text of a message's content, and how many characters of thoughts it has: some servers send parts."""
    if not isinstance(content, list | dict):
        return text_field(content, "a text"), 0
    texts, unseen = [], 0
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and (thought := part.get("thinking") or part.get("reasoning")):
            unseen += len(compact_json(thought))
        elif isinstance(part, dict):
            text = part.get("text") or part.get("refusal")
            if not KNOWN_PARTS & part.keys():
                builder.pass_over(part.get("type"))
            texts.append(text_field(text.get("value") if isinstance(text, dict) else text, "a text"))
    return "".join(texts), unseen


def _add_call_piece(part: Mapping[str, Any], builder: AnswerBuilder) -> int:
    """Take a piece of a tool call; returns how many characters it has."""
    function, index = part.get("function") or {}, index_of(part.get("index"))
    id_, name = id_field(part.get("id")), text_field(function.get("name"), "the name of a tool")
    arguments = arguments_text(function.get("arguments"))
    builder.calls.add_piece(index, id_, name, arguments, sign_call(part))
    return len(name) + len(arguments)


def _usage(counted: object) -> Usage | None:
    if not isinstance(counted, dict) or counted.get("prompt_tokens") is None:
        return None
    thinking = details_of(counted, "completion_tokens_details").get("reasoning_tokens")
    cached = details_of(counted, "prompt_tokens_details")
    other_names = map(counted.get, ("prompt_cache_hit_tokens", "cached_tokens"))  # DeepSeek's and Kimi's
    read = first_count(cached.get("cached_tokens"), *other_names)
    written = cached.get("cache_write_tokens")
    reported = counted_usage(counted["prompt_tokens"], counted.get("completion_tokens"), thinking, read, written)
    thinking = min(reported.thinking, reported.output)  # completion_tokens includes them
    return evolve(reported, output=reported.output - thinking, thinking=thinking)
