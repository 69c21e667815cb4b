"""Gemini, by Google's own SDK."""

import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google import genai
from google.genai import errors, types

from .provider import (
    Answer,
    Delta,
    Failing,
    FinishReason,
    Hear,
    Message,
    ProviderError,
    Question,
    Rejected,
    ThinkingLevel,
    Tool,
    ToolCall,
    ToolChoice,
    Usage,
)
from .settings import Timeouts
from .vendor import OURS, Account, Arriving, compact, http_client, listen, new_id, seconds, seconds_of

CHOICES: Mapping[ToolChoice, types.FunctionCallingConfigMode] = {
    "auto": types.FunctionCallingConfigMode.AUTO,
    "none": types.FunctionCallingConfigMode.NONE,
    "required": types.FunctionCallingConfigMode.ANY,
}
BUDGETS: Mapping[ThinkingLevel, int] = {"low": 1024, "medium": 8192, "high": 24576}  # tokens, before there were levels
# It warns of an answer that isn't all text while it tries to parse one that was asked for by a schema.
logging.getLogger("google_genai.types").setLevel(logging.ERROR)

FILTERS = (
    *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "MODEL_ARMOR"),
    *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
)
FINISHED: Mapping[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(FILTERS, "content_filter"),
}


class Gemini:
    """A connection to Gemini, or to what speaks its protocol at ``base_url``. Made in a thread, for it takes 80 ms."""

    def __init__(self, account: Account, base_url: str | None, timeouts: Timeouts) -> None:
        self._account = account
        self._http = http_client(timeouts)
        self._client = genai.Client(
            vertexai=False,
            api_key=account.key or "none",
            # With a client of ours, or the SDK takes aiohttp where that is installed, which can't run on Trio.
            http_options=types.HttpOptions(base_url=base_url, httpx_async_client=self._http),
        )
        self._models = self._client.aio.models

    async def answer(self, question: Question, hear: Hear) -> Answer:
        try:
            contents, config = _contents(question.messages), _config(question)
        except ValueError as error:  # a signature that isn't base64, say
            raise Rejected(f"gemini can't be asked this: {self._account.clean(error)}") from None
        arriving = Arriving()
        unheard = None
        with self._account.errors(arriving):
            try:
                stream = await self._models.generate_content_stream(
                    model=question.model, contents=contents, config=config
                )
                unheard = await listen(stream, lambda piece: _read(piece, arriving), hear)
            except errors.APIError as error:
                raise self._refusal(error) from None
            except ValueError as error:
                if type(error) is not ValueError:  # a descendant says that the answer can't be read
                    raise
                raise Rejected(f"gemini can't be asked this: {self._account.clean(error)}") from None
        if unheard is not None:
            raise unheard
        return arriving.answer(self._account.vendor, question)

    async def aclose(self) -> None:
        self._client.close()
        await self._http.aclose()

    def _refusal(self, error: errors.APIError) -> ProviderError:
        details = _details(error.details)
        if any(detail.get("reason") == "API_KEY_INVALID" for detail in details):
            return self._account.denied(error.code)  # which is 400
        # A duration, as Google writes it: "34.5s".
        delays = [seconds(str(detail["retryDelay"]).removesuffix("s")) for detail in details if "retryDelay" in detail]
        after = delays[0] if delays else seconds_of(getattr(error.response, "headers", None) or {})
        return self._account.refusal(error.code or 500, error.message or error.status, after)


def _contents(messages: Sequence[Message]) -> list[types.ContentUnion]:
    """The conversation; what several tools answered goes into one turn, as their calls came in one."""
    names = {call.id: call.name for message in messages for call in message.calls}
    turns: list[tuple[str, list[types.Part]]] = []
    before = None
    for message in messages:
        if not message.role == before == "tool":
            turns.append(("model" if message.role == "assistant" else "user", []))
        turns[-1][1].extend(_parts(message, names))
        before = message.role
    return [types.Content(role=role, parts=parts) for role, parts in turns]


def _parts(message: Message, names: Mapping[str, str]) -> Iterator[types.Part]:
    if message.answers is not None:
        name = names.get(message.answers, message.answers)
        response = types.FunctionResponse(id=_theirs(message.answers), name=name, response=_object(message.text))
        yield types.Part(function_response=response)
    elif message.text or not (message.images or message.calls):
        yield types.Part(text=message.text)
    for image in message.images:
        yield types.Part(inline_data=types.Blob(data=image.data, mime_type=image.mime_type))
    for call in message.calls:
        yield types.Part(
            function_call=types.FunctionCall(id=_theirs(call.id), name=call.name, args=dict(call.arguments)),
            thought_signature=base64.b64decode(call.signature, validate=True) if call.signature else None,
        )


def _object(text: str) -> dict[str, Any]:
    """What a tool answered, which Gemini wants as an object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"output": value}


def _theirs(id: str) -> str | None:
    return None if id.startswith(OURS) else id


def _config(question: Question) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(
        system_instruction=question.system,
        temperature=question.temperature,
        max_output_tokens=question.max_tokens,
        stop_sequences=list(question.stop) or None,
        thinking_config=_thinking(question.model, question.thinking_level),
        tools=[types.Tool(function_declarations=[_declared(tool) for tool in question.tools])]
        if question.tools
        else None,
        tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(mode=CHOICES[question.tool_choice])
        )
        if question.tools
        else None,
        response_mime_type="application/json" if question.response_schema is not None else None,
        response_json_schema=question.response_schema,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        automatic_continuation=False,  # it would ask again by itself, beside budgets and deadlines
    )


def _declared(tool: Tool) -> types.FunctionDeclaration:
    return types.FunctionDeclaration(
        name=tool.name, description=tool.description or None, parameters_json_schema=dict(tool.parameters) or None
    )


def _thinking(model: str, level: ThinkingLevel | None) -> types.ThinkingConfig | None:
    """Since Gemini 3 there are levels; 2.5 has budgets; what is older doesn't think, and refuses to be told to."""
    model = model.removeprefix("models/")
    if level is None or model.startswith(("gemini-1", "gemini-2.0")):
        return None
    if model.startswith("gemini-2.5"):
        return types.ThinkingConfig(thinking_budget=BUDGETS[level])
    return types.ThinkingConfig(thinking_level=types.ThinkingLevel(level.upper()))


def _read(piece: types.GenerateContentResponse, arriving: Arriving) -> Delta:
    arriving.model = piece.model_version or arriving.model
    text, unseen = "", 0
    candidate = piece.candidates[0] if piece.candidates else None
    for part in (candidate and candidate.content and candidate.content.parts) or ():
        if part.function_call is not None:
            call = _call(part.function_call, part.thought_signature)
            arriving.calls.append(call)
            unseen += len(call.name) + len(compact(call.arguments))
        elif part.thought:
            unseen += len(part.text or "")
        else:
            text += part.text or ""
    if candidate is not None and candidate.finish_reason is not None:
        arriving.finish = _finish(candidate.finish_reason)
    elif piece.prompt_feedback is not None and piece.prompt_feedback.block_reason is not None:
        arriving.finish = "content_filter"
    return arriving.got(text, unseen, _usage(piece.usage_metadata))


def _call(call: types.FunctionCall, signature: bytes | None) -> ToolCall:
    return ToolCall(
        id=call.id or new_id(),
        name=call.name or "",
        arguments=call.args or {},
        signature=base64.b64encode(signature).decode() if signature else None,
    )


def _finish(reason: types.FinishReason) -> FinishReason:
    if reason.value not in FINISHED:
        raise Failing(f"gemini ended its answer with {reason.value}")  # a malformed call, say: the next may be better
    return FINISHED[reason.value]


def _usage(counted: types.GenerateContentResponseUsageMetadata | None) -> Usage | None:
    if counted is None or counted.prompt_token_count is None:
        return None
    return Usage(
        input=counted.prompt_token_count + (counted.tool_use_prompt_token_count or 0),
        output=counted.candidates_token_count or 0,
        thinking=counted.thoughts_token_count or 0,
    )


def _details(body: object) -> list[dict[str, Any]]:
    error = body.get("error") if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    return [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
