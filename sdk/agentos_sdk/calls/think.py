"""THINK: a question to the model and its answer. LLM_REPORT: token use as reported by the original's clients."""

import re
from binascii import a2b_base64
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from attrs import field

from agentos_sdk.encoding.codec import Rule, Seconds, Text
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op
from agentos_sdk.values import Fallback, LLMClass, ThinkingLevel, Tool, ToolCall, ToolChoice, Usage

from .request import Request, RequestId, SuccessfulReply

DECODED_CHARS = 256 << 10  # characters of base64 decoded at a time, in 1 ms
MAX_STOPS = 4

_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_IMAGE_TYPE = re.compile(r"image/[A-Za-z0-9][A-Za-z0-9.+-]{0,62}")


def _is_base64(text: str) -> bool:
    """Looks at pieces, so that other threads can run: an image may have 16 MiB."""
    digits = text.rstrip("=")
    if not text or len(text) % 4 or len(text) - len(digits) > 2:
        return False
    pieces = (digits[at : at + DECODED_CHARS] for at in range(0, len(digits), DECODED_CHARS))
    return not any(piece.encode(errors="replace").translate(None, _DIGITS) for piece in pieces)


Base64: TypeAlias = Annotated[Text, Rule(_is_base64, "base64, with padding and without line breaks")]
ImageType: TypeAlias = Annotated[str, Rule(_IMAGE_TYPE.fullmatch, "the type of an image such as image/png")]
Temperature: TypeAlias = Annotated[float, Rule(lambda t: 0 <= t <= 2, "a number from 0 to 2")]
Count: TypeAlias = Annotated[int, Rule(lambda n: n >= 1, "a whole number from 1 up")]
Tokens: TypeAlias = Annotated[int, Rule(lambda n: n >= 0, "a whole number from 0 up")]
Name: TypeAlias = Annotated[str, Rule(bool, "a name")]
Stop: TypeAlias = Annotated[str, Rule(bool, "some text")]
Stops: TypeAlias = Annotated[Sequence[Stop], Rule(lambda stops: len(stops) <= MAX_STOPS, f"at most {MAX_STOPS} texts")]


@record
class Image:
    """``data`` is the file in base64."""

    data: Base64 = field(repr=False)
    mime_type: ImageType = "image/jpeg"

    @property
    def decoded(self) -> bytes:
        """The decoded file. Use a thread if it may be large: it is decoded in pieces, so that other threads can run."""
        data = self.data
        return b"".join(a2b_base64(data[at : at + DECODED_CHARS]) for at in range(0, len(data), DECODED_CHARS))


@record
class Part:
    """A part of a message: type text with ``text``, or type image with ``data`` in base64 and ``mime_type``."""

    type: Literal["text", "image"]
    text: Text | None = None
    data: Base64 | None = field(default=None, repr=False)
    mime_type: ImageType | None = None

    def __attrs_post_init__(self) -> None:
        needed, foreign = ("text", ("data", "mime_type")) if self.type == "text" else ("data", ("text",))
        if getattr(self, needed) is None:
            raise ValueError(f"a part of type {self.type} needs {needed}")
        if any(getattr(self, name) is not None for name in foreign):
            raise ValueError(f"a part of type {self.type} has no {' and no '.join(foreign)}")

    @property
    def image(self) -> Image | None:
        if self.data is None:
            return None
        return Image(data=self.data, mime_type=self.mime_type or "image/jpeg")


@record
class Message:
    """One turn of a conversation. System messages are instructions, at any position.

    An assistant's message has text, ``tool_calls``, or both. A tool's message answers the call ``tool_call_id``.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: Text | Sequence[Part] | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.content is None and not self.tool_calls:
            raise ValueError("content: required field missing")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: expected in the assistant's messages only, not in the {self.role}'s")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id: expected in a tool's messages, and in no others")
        if self.images and self.role != "user":
            raise ValueError(f"content: expected images in the user's messages only, not in the {self.role}'s")

    @property
    def text(self) -> str:
        """All text of the message; parts are joined without a separator."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text or "" for part in self.content or ())

    @property
    def images(self) -> Sequence[Image]:
        if isinstance(self.content, str):
            return ()
        return [part.image for part in self.content or () if part.image]


@record
class Thought(SuccessfulReply):
    """The whole answer. ``tokens`` is ``usage.total``.

    ``finish_reason`` is stop, length, tool_calls or content_filter. ``queued_ms`` is the part of ``latency_ms`` that
    was spent in the queue. ``cached``: an equal question was answered before, and the model wasn't asked.
    ``requested_model`` is the alias that was asked for, None if a model was named; ``fallbacks`` are its models that
    were passed over.
    ``cost`` is in the kernel's currency, None if the model has no price. ``context`` is how many tokens fit into the
    model's context, as ``[llm.context]`` says.
    """

    content: Text
    tokens: int
    error: str | None = None
    model: str
    usage: Usage
    finish_reason: str
    tool_calls: Sequence[ToolCall] = ()
    queued_ms: float
    latency_ms: float
    cached: bool = False
    requested_model: str | None = None
    fallbacks: Sequence[Fallback] = ()
    cost: float | None = None
    context: int | None = None

    @property
    def message(self) -> Message:
        """The answer as a message, for the next question."""
        return Message(role="assistant", content=self.content, tool_calls=self.tool_calls)


@record
class Delta:
    """A CHUNK of a streamed answer: the new text."""

    delta: Text


@record
class Think(Request[Thought]):
    """Ask the model: ``prompt``, with the conversation before it in ``messages``, or ``messages`` alone.

    ``image`` and ``images`` belong to ``prompt``. ``max_tokens`` limits the generated tokens, thoughts included.
    ``response_schema`` is a JSON schema that the answer's text has to match. ``timeout`` in seconds includes the time
    in the queue. ``class_`` is at most the caller's own, which is the default. Another field that is None is
    left to the model's default.
    """

    op = Op.THINK
    prompt: Text | None = None
    messages: Sequence[Message] = ()
    system_instruction: Text | None = None
    image: Image | None = None
    images: Sequence[Image] = ()
    thinking_level: ThinkingLevel | None = None
    temperature: Temperature | None = None
    max_tokens: Count | None = None
    model: Name | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    stop: Stops = ()
    response_schema: Mapping[str, Any] | None = None
    stream: bool = False
    timeout: Seconds | None = None
    class_: LLMClass | None = None
    async_: bool = False
    request_id: RequestId = None

    def __attrs_post_init__(self) -> None:
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError("prompt: expected some text, got none")
        if self.prompt is None and (self.image or self.images):
            raise ValueError("prompt: expected one with image and images; in messages images are parts of the content")
        if self.prompt is None and not self.turns:
            raise ValueError("prompt: expected one, or messages that aren't all the system's")
        twice = [name for name, count in Counter(tool.name for tool in self.tools).items() if count > 1]
        if twice:
            raise ValueError(f"tools: expected names that differ, got {twice[0]!r} twice")
        if self.tool_choice == "required" and not self.tools:
            raise ValueError("tool_choice: expected tools to choose from")

    @property
    def turns(self) -> Sequence[Message]:
        """The conversation: all messages but the system's, and the prompt with its images as the user's last turn."""
        said = [message for message in self.messages if message.role != "system"]
        if self.prompt is None:
            return said
        images = [image for image in (self.image, *self.images) if image is not None]
        shown = [Part(type="image", data=image.data, mime_type=image.mime_type) for image in images]
        return [*said, Message(role="user", content=[*shown, Part(type="text", text=self.prompt)])]

    @property
    def system(self) -> str | None:
        """The system instructions: ``system_instruction``, then the system messages, separated by blank lines."""
        said = [message.text for message in self.messages if message.role == "system"]
        return "\n\n".join(text for text in (self.system_instruction, *said) if text) or None


@record
class Reported(SuccessfulReply):
    """``tokens`` is what the kernel itself has counted for the caller since it was created.

    ``quota_exceeded``: whether one of the caller's budgets is used up.
    """

    tokens: int
    quota_exceeded: bool


@record
class LLMReport(Request[Reported]):
    """``tokens`` is what the caller reports as used. It has no effect: the kernel counts by itself."""

    op = Op.LLM_REPORT
    tokens: Tokens
