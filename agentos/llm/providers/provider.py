"""The provider interface: request, answer, tool call, token usage and errors of an LLM provider."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import chain
from sys import getsizeof
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
from attrs import define, field, frozen
from msgspec import Struct
from msgspec.structs import force_setattr

from agentos.llm.answers.prompt_blocks import Block, CacheMark
from agentos.llm.answers.sampling import Effort, Sampling
from agentos_sdk.encoding.characters import join_surrogates
from agentos_sdk.values import MAX_TOKENS, Tool, ToolCall, ToolChoice, Usage

Role = Literal["user", "assistant", "tool", "system"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "embedded"]

CHARACTERS_PER_TOKEN = 4  # of English text, roughly; for estimates before a provider has counted
MAX_MODEL = 200  # characters of the name of the model that answered, as of one that is asked
TOKENS_PER_IMAGE = 258  # what Gemini counts for one of its tiles; also for estimates
TOKENS_PER_MESSAGE = 4  # for its role and its end


@frozen
class Image:
    """``data`` are the bytes of the file, not base64 as in the SDK's."""

    data: bytes = field(repr=False)
    mime_type: str


class Message(Struct, frozen=True):
    """One turn of a conversation. ``calls`` are the assistant's; ``answers`` is the id of the call a tool answered.

    A system message within the conversation is one; those before it are in the question's field ``system``.
    ``blocks`` are its parts in their order, empty: the text, then images, then calls. ``mark`` is that of a tool's
    result as a whole.
    """

    role: Role
    text: str = ""
    images: Sequence[Image] = ()
    calls: Sequence[ToolCall] = ()
    answers: str | None = None
    blocks: Sequence[Block] = ()
    mark: CacheMark | None = None


class Question(Struct, frozen=True, weakref=True):
    """One request to a model. ``None`` leaves the choice to the provider.

    ``max_tokens`` limits what is generated, thoughts included. ``response_schema`` is a JSON schema which the answer's
    text has to match. ``embed``: the answer is a vector for each message's text, of so many ``dimensions``.
    ``system_blocks`` are the parts of ``system``, empty: it is one. ``marked_tools``, by name, and ``cache_mark``, of
    the question as a whole, are marks for the vendor's prompt cache; OpenAI finds the entry of ``cache_key`` sooner.

    ``size``: bytes of memory of the parts that may be large: texts, images, and all that is JSON. It is measured when
    the question is made; a value that is passed is ignored. So make a large question in a thread: 16 MiB of JSON take
    5 ms.
    """

    model: str
    messages: Sequence[Message]
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    thinking_level: Effort | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    stop: Sequence[str] = ()
    response_schema: Mapping[str, Any] | None = None
    sampling: Sampling = Sampling()
    embed: bool = False
    dimensions: int | None = None
    system_blocks: Sequence[Block] = ()
    marked_tools: Mapping[str, CacheMark] = {}
    cache_mark: CacheMark | None = None
    cache_key: str | None = None
    size: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "size", self._measure())

    def for_model(self, model: str, max_tokens: int | None) -> "Question":
        """The same question to another model, or with another limit; unlike ``replace``, doesn't measure it again."""
        other = copy(self)
        force_setattr(other, "model", model)
        force_setattr(other, "max_tokens", max_tokens)
        return other

    @property
    def parts(self) -> int:
        """Number of messages, blocks, images, tools and calls."""
        return len(self.tools) + len(self.system_blocks) + sum(map(_parts_of, self.messages))

    @property
    def cache_marks(self) -> Sequence[CacheMark]:
        """All marks for the vendor's prompt cache."""
        blocks = chain(self.system_blocks, *(message.blocks for message in self.messages))
        marks = chain((self.cache_mark,), self.marked_tools.values(), (message.mark for message in self.messages))
        return [mark for mark in chain(marks, (block.mark for block in blocks)) if mark is not None]

    @property
    def for_hour(self) -> bool:
        """Whether the vendor is asked to keep some of the prompt for an hour."""
        return "1h" in self.cache_marks

    def _measure(self) -> int:
        size = getsizeof(self.system) + json_bytes(self.response_schema) + len(self.cache_key or "")
        for message in self.messages:
            size += getsizeof(message.text) + sum(len(image.data) for image in message.images)
            size += sum(json_bytes(call.arguments) for call in message.calls)
        return size + sum(getsizeof(tool.description) + json_bytes(tool.parameters) for tool in self.tools)


def _parts_of(message: Message) -> int:
    return 1 + max(len(message.blocks), len(message.images) + len(message.calls))


def counted_usage(*counts: object) -> Usage:
    """Token counts from outside, in the order of :class:`Usage`; invalid ones become 0, as if there were no count.

    No more input was cached than there is.
    """
    counted = Usage(*(count if type(count) is int and 0 <= count <= MAX_TOKENS else 0 for count in counts))
    return counted.with_input(counted.input)


def first_count(*counts: object) -> object:
    """The first count that isn't 0 or missing: servers that speak one protocol name the same count differently."""
    return next((count for count in counts if count), None)


def details_of(counted: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The details of a count in a vendor's usage; empty without any."""
    details = counted.get(name)
    return details if isinstance(details, dict) else {}


class Delta(Struct, frozen=True):
    """A newly arrived piece of an answer.

    ``unseen`` are characters that are not shown as they arrive: of thoughts, of a tool's arguments. ``usage`` is what
    the provider has counted so far, from the beginning, if it says. ``accepted``: nothing of the answer has arrived,
    but the provider has accepted the request and works on it. ``begun``: a piece without characters is the first one,
    as of thoughts that the vendor withholds.
    """

    text: str = ""
    unseen: int = 0
    usage: Usage | None = None
    accepted: bool = False
    begun: bool = False


@frozen
class Answer:
    """A whole answer; ``model`` is the one that gave it, as the provider says.

    ``logprobs``, if requested, is a JSON array of what OpenAI's protocol calls ``logprobs.content``. ``vectors`` are
    the embeddings of the messages, each as 32-bit floats with the lowest byte first.
    """

    text: str
    usage: Usage
    finish_reason: FinishReason
    model: str
    calls: Sequence[ToolCall] = ()
    logprobs: bytes | None = field(default=None, repr=False)
    vectors: Sequence[bytes] = field(default=(), repr=False)


def answered_by(model: str | None, question: Question) -> str:
    """The model that answered, as its server calls it, or the one that was asked."""
    return join_surrogates((model or question.model)[:MAX_MODEL])


OnDelta: TypeAlias = Callable[[Delta], None]


@define(eq=False)
class Heard:
    """Passes on the pieces of an answer. ``any``: part of it has come, so that the question can't be asked again."""

    on_delta: OnDelta
    any: bool = False

    def __call__(self, delta: Delta) -> None:
        self.any = self.any or bool(delta.text or delta.unseen)
        self.on_delta(delta)


class Provider(Protocol):
    """A connection to an LLM service. It never retries and sets no deadline: ``ProviderClient`` does.

    Made and used in one run of Trio; any number of requests may be under way. Providers inherit from it.
    """

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        """Send a request, always streaming, and call ``on_delta`` with each piece as it arrives.

        To stop, cancel: the connection is closed at once. Raises only :class:`ProviderError`; its text is for people
        and contains no key.
        """

    async def aclose(self) -> None:
        """Close idle connections."""

    def supports(self, question: Question) -> str | None:
        """Why it can't answer such a question (images, tools, a schema, a parameter); None: it can, or that is unknown.

        The reason completes a sentence that begins with the model's name: ``takes no images``.
        """
        return None


@runtime_checkable
class Embedder(Protocol):
    """A provider that also answers a question to ``embed``."""

    async def embed(self, question: Question, on_delta: OnDelta) -> Answer:
        """Send a request; errors, cancellation and ``accepted`` as in :meth:`Provider.answer`."""


async def ask(provider: Provider, question: Question, on_delta: OnDelta) -> Answer:
    """Let the provider answer or embed; raises :class:`ProviderError`."""
    if not question.embed:
        return await provider.answer(question, on_delta)
    if not isinstance(provider, Embedder):
        raise Rejected(f"the provider of {question.model} has no embeddings")
    return await provider.embed(question, on_delta)


class ProviderError(Exception):
    """No answer, or only a part of it. The subclass says what to do about it.

    ``status`` is that of the provider's HTTP response; ``None`` if there was none.
    """

    def __init__(self, text: str, *, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Rejected(ProviderError):
    """The request can't be answered as it is (400, 404, 413, 422): a retry would change nothing."""


class Denied(ProviderError):
    """The key was refused or lacks rights (401, 403), or there is no such account: the operator has to fix it."""


class RateLimited(ProviderError):
    """Too many requests (429). ``after``: seconds in which the provider wants no requests, if it says."""

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(text, status=429)
        self.after = after


class Failing(ProviderError):
    """The provider failed (408, 5xx) or the connection broke; ``after`` as in :class:`RateLimited`."""

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(text)
        self.after = after


class Unforeseen(Failing):
    """The provider answered what can't be understood, in its own words: the next attempt would get the same."""


class MalformedCall(Failing):
    """The model called a tool with arguments that are no JSON object, and the vendor withholds the call."""

    def __init__(self, vendor: str, why: str = "") -> None:
        super().__init__(f"{vendor} called a tool with arguments that are no JSON object{why}")


class NoJSON(Failing):
    """The model was asked for a JSON object and answered with other text."""


def estimate_input_tokens(question: Question) -> int:
    """Estimated input tokens of a request."""
    characters = len(question.system or "")
    tokens = 0
    for message in question.messages:
        characters += len(message.text)
        characters += sum(len(call.name) + json_bytes(call.arguments) for call in message.calls)
        tokens += TOKENS_PER_MESSAGE + TOKENS_PER_IMAGE * len(message.images)
    for tool in question.tools:
        characters += len(tool.name) + len(tool.description) + json_bytes(tool.parameters)
    return tokens + estimate_tokens(characters)


def estimate_tokens(characters: int) -> int:
    """Estimated tokens of a text of this length."""
    return -(-characters // CHARACTERS_PER_TOKEN)


def json_bytes(value: object) -> int:
    """Bytes of a value as JSON; takes 5 ms for one of 16 MiB."""
    try:
        return len(msgspec.json.encode(value))
    except OverflowError:  # a number of more than 64 bits
        return len(repr(value))
