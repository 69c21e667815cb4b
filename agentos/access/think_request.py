"""THINK requests: parses a body into the question for the model."""

import json
import re
from collections.abc import Sequence
from hashlib import sha256

from attrs import evolve
from msgspec import Struct

from agentos.kernel.wire.request_body import read_text
from agentos.llm.answers.called_tools import read_arguments
from agentos.llm.providers import provider as llm
from agentos_sdk.calls import think as calls
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.characters import join_surrogates_in
from agentos_sdk.errors import BadRequest
from agentos_sdk.values import LLMClass, ToolCall

MAX_INLINE_BYTES = 4 << 10  # bytes of a body that are parsed in the event loop: 100 short messages take 3 ms
BRACE = re.compile(rb"\s*\{")


class ThinkRequest(Struct, frozen=True):
    """A question; whether its answer is sent piece by piece as it arrives; and its timeout in seconds.

    ``class_=None``: the caller's own. ``left_out`` is what a program asked for and the question
    lacks. ``async_`` and ``request_id`` are those of :class:`agentos.kernel.background.Background`.
    """

    question: llm.Question
    stream: bool = False
    timeout: float | None = None
    async_: bool = False
    request_id: int | str | None = None
    class_: LLMClass | None = None
    left_out: Sequence[str] = ()


def parse_think(body: bytes, model: str) -> ThinkRequest:
    """Parse a body; ``model`` is used if it names none."""
    asked = _decode(body)
    question = build_question(asked, model)
    return ThinkRequest(question, asked.stream, asked.timeout, asked.async_, asked.request_id, asked.class_)


def _decode(body: bytes) -> calls.Think:
    """Decode the body. One that doesn't start like a JSON object is the prompt itself, as in version 1."""
    if BRACE.match(body):
        return read_text(calls.Think, body)
    try:
        return codec.decode(calls.Think, {"prompt": body.decode()})
    except UnicodeDecodeError:
        raise BadRequest("prompt: expected text in UTF-8, or a JSON object") from None
    except codec.Invalid as error:
        raise BadRequest(str(error)) from None


def build_question(asked: calls.Think, model: str) -> llm.Question:
    """The question to a model. In its JSON, U+FFFD stands for each half of a surrogate pair: models make such calls."""
    return llm.Question(
        model=asked.model or model,
        messages=[build_message(message) for message in asked.turns],
        system=asked.system,
        temperature=asked.temperature,
        max_tokens=asked.max_tokens,
        thinking_level=asked.thinking_level,
        tools=[evolve(tool, parameters=join_surrogates_in(tool.parameters)) for tool in asked.tools],
        tool_choice=asked.tool_choice,
        stop=asked.stop,
        response_schema=join_surrogates_in(asked.response_schema),
    )


def build_message(message: calls.Message) -> llm.Message:
    assert message.role != "system", "system messages are in the question's field system"
    return llm.Message(
        message.role,
        message.text,
        [llm.Image(image.decoded, image.mime_type) for image in message.images],
        [_build_call(call) for call in message.tool_calls],
        message.tool_call_id,
    )


def _build_call(call: ToolCall) -> ToolCall:
    arguments = call.arguments
    read = read_arguments(arguments) if isinstance(arguments, str) else join_surrogates_in(arguments)
    return evolve(call, arguments=read)


def digest_question(question: llm.Question) -> str:
    """SHA-256 of a question's texts and images, in hexadecimal: tells equal questions without keeping their text.

    Hashed is a JSON array of pairs in UTF-8, without spaces: ``["system", text]`` if there is one, then for each
    message ``[role, text]`` and for each of its images ``["image", SHA-256 of its bytes]``.
    """
    pairs = [("system", question.system)] if question.system is not None else []
    for message in question.messages:
        pairs.append((message.role, message.text))
        pairs += [("image", sha256(image.data).hexdigest()) for image in message.images]
    return sha256(
        json.dumps(pairs, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    ).hexdigest()
