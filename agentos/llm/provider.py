"""What a model is asked, what it answers, and what a provider of models has to be."""

from collections.abc import Callable, Mapping, Sequence
from sys import getsizeof
from typing import Any, Literal, Protocol, TypeAlias

from attrs import field, frozen

from .sampling import Sampling

Role = Literal["user", "assistant", "tool"]
ThinkingLevel = Literal["low", "medium", "high"]
ToolChoice = Literal["auto", "none", "required"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]

CHARACTERS_PER_TOKEN = 4  # of English text, roughly; for what is to be guessed before a provider has counted
TOKENS_PER_IMAGE = 258  # what Gemini counts for one of its tiles; likewise
MOST_TOKENS = 10**9  # that anybody is believed to have counted
TOKENS_PER_MESSAGE = 4  # who says it, and where it ends


@frozen
class Image:
    """``data`` are the bytes of the file, not base64."""

    data: bytes = field(repr=False)
    mime_type: str


@frozen
class ToolCall:
    """A tool that the model wants called. ``signature`` is the provider's own: to be given back with the call."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    signature: str | None = None


@frozen
class Message:
    """One turn of a conversation. ``calls`` are the assistant's; ``answers`` is the id of the call a tool answered."""

    role: Role
    text: str = ""
    images: Sequence[Image] = ()
    calls: Sequence[ToolCall] = ()
    answers: str | None = None


@frozen
class Tool:
    """What the model may ask to be called; ``parameters`` is a JSON schema of an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(factory=dict)


@frozen
class Question:
    """All that a model is asked at once. ``None`` leaves the choice to the provider.

    ``max_tokens`` bounds what is generated, thoughts included. ``response_schema`` is a JSON schema which the answer's
    text has to match.
    """

    model: str
    messages: Sequence[Message]
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    thinking_level: ThinkingLevel | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    stop: Sequence[str] = ()
    response_schema: Mapping[str, Any] | None = None
    sampling: Sampling = Sampling()

    @property
    def parts(self) -> int:
        """Of how many pieces it is made."""
        return len(self.tools) + sum(1 + len(said.images) + len(said.calls) for said in self.messages)

    @property
    def size(self) -> int:
        """Bytes of memory that it takes while it waits, of what may be large."""
        texts = sum(getsizeof(said.text) for said in self.messages) + getsizeof(self.system)
        return texts + sum(len(image.data) for said in self.messages for image in said.images)


def _tokens(counted: object) -> int:
    """What somebody else has counted; nonsense is 0, as if nobody had."""
    return counted if type(counted) is int and 0 <= counted <= MOST_TOKENS else 0


@frozen
class Usage:
    """Tokens: of the question, of the answer without thoughts, and of the thoughts."""

    input: int = field(default=0, converter=_tokens)
    output: int = field(default=0, converter=_tokens)
    thinking: int = field(default=0, converter=_tokens)

    @property
    def generated(self) -> int:
        return self.output + self.thinking

    @property
    def total(self) -> int:
        return self.input + self.generated

    def __add__(self, other: "Usage") -> "Usage":
        sums = (self.input + other.input, self.output + other.output, self.thinking + other.thinking)
        return Usage(*(min(each, MOST_TOKENS) for each in sums))


@frozen
class Delta:
    """What has just arrived of an answer.

    ``unseen`` are characters that nobody is shown as they come: of thoughts, of a tool's arguments. ``usage`` is what
    the provider has counted so far, from the beginning, if it says.
    """

    text: str = ""
    unseen: int = 0
    usage: Usage | None = None


@frozen
class Answer:
    """A whole answer; ``model`` is the one that gave it, as the provider says.

    ``logprobs``, where they were asked for, is a JSON array of what OpenAI's protocol calls ``logprobs.content``.
    """

    text: str
    usage: Usage
    finish_reason: FinishReason
    model: str
    calls: Sequence[ToolCall] = ()
    logprobs: bytes | None = field(default=None, repr=False)


Hear: TypeAlias = Callable[[Delta], None]


class Provider(Protocol):
    """A connection to somebody who runs models. It never retries and sets no deadline: the line does.

    Made and used in one run of Trio; any number of questions may be under way.
    """

    async def answer(self, question: Question, hear: Hear) -> Answer:
        """Ask, always streaming, and tell ``hear`` of every piece as it arrives.

        To stop, cancel: the connection is closed at once. Raises a :class:`ProviderError`, nothing else; its text is
        for people and holds no key.
        """

    async def aclose(self) -> None:
        """Close idle connections."""


class ProviderError(Exception):
    """No answer, or only a part of it. The subclass says what to do about it.

    ``status`` is that of the provider's HTTP reply; ``None`` where there was none.
    """

    def __init__(self, text: str, *, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Rejected(ProviderError):
    """The question can't be answered as it is (400, 404, 413, 422): asking it again would change nothing."""


class Denied(ProviderError):
    """The key was refused or doesn't suffice (401, 403), or there is no such account: for the operator to mend."""


class SlowDown(ProviderError):
    """Too many requests (429). ``after`` is the seconds the provider wants nobody to ask, if it says."""

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(text, status=429)
        self.after = after


class Failing(ProviderError):
    """Its own trouble (408, 5xx), or the way to it broke; ``after`` as in :class:`SlowDown`."""

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(text)
        self.after = after


def guessed_input(question: Question) -> int:
    """Tokens that a question has, roughly, before anybody has counted them."""
    characters = len(question.system or "")
    tokens = 0
    for message in question.messages:
        characters += len(message.text)
        characters += sum(len(call.name) + _characters(call.arguments) for call in message.calls)
        tokens += TOKENS_PER_MESSAGE + TOKENS_PER_IMAGE * len(message.images)
    for tool in question.tools:
        characters += len(tool.name) + len(tool.description) + _characters(tool.parameters)
    return tokens + guessed(characters)


def guessed(characters: int) -> int:
    """Tokens of so many characters, roughly."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def _characters(value: object) -> int:
    """Of JSON, without writing it."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, Mapping):
        return sum(len(name) + 4 + _characters(inner) for name, inner in value.items())
    if isinstance(value, Sequence):
        return sum(2 + _characters(inner) for inner in value)
    return 4
