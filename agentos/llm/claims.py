"""The tokens that a provider claims to have counted, held within what can be true. Pure.

Nobody else counts them, and budgets are charged by them: a provider that claims 1 token for everything would make them
worthless, and one that claims a billion would use them up at once.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import frozen

from .provider import Question, Usage

Bound = Literal["least", "most"]

MOST_BYTES = 16  # of text that one token stands for; English has about 4
ENVELOPE = 32  # bytes of JSON around each message, tool and call: vendors count tokens for these, too
MOST_PER_IMAGE = 48_169  # tokens: gpt-4o-mini's 2,833 and 5,667 for each of at most 8 tiles, the most of any model
MOST_GENERATED = 128 << 10  # tokens, where the question names no bound: the largest models stop there


@frozen
class Sent:
    """What went out with a question: ``size`` in bytes without the images, of text as UTF-8, of JSON about."""

    size: int
    images: int


def measured(question: Question) -> Sent:
    """Takes some milliseconds for texts of several MiB."""
    size = utf8_length(question.system or "") + ENVELOPE
    for message in question.messages:
        size += ENVELOPE + utf8_length(message.text)
        size += sum(ENVELOPE + utf8_length(call.name) + _json(call.arguments) for call in message.calls)
    for tool in question.tools:
        size += ENVELOPE + utf8_length(tool.name) + utf8_length(tool.description) + _json(tool.parameters)
    size += _json(question.response_schema) if question.response_schema is not None else 0
    return Sent(size, sum(len(message.images) for message in question.messages))


def bounded(claim: Usage, sent: Sent, received: int, max_tokens: int | None) -> tuple[Usage, Bound | None]:
    """What is charged: the claim or, where that can't be true, the nearest that can; and which bound was used.

    ``received`` is in bytes, ``max_tokens`` what the question might generate. In all it is a token for every
    :data:`MOST_BYTES` at least, and at most a token for each byte, what images can cost, and ``max_tokens``.
    """
    least = -(-(sent.size + received) // MOST_BYTES)
    if claim.total < least:
        tokens_in = max(claim.input, -(-sent.size // MOST_BYTES))
        return Usage(tokens_in, max(claim.output, least - tokens_in - claim.thinking), claim.thinking), "least"
    generated = received + (MOST_GENERATED if max_tokens is None else max_tokens)
    most = sent.size + MOST_PER_IMAGE * sent.images + generated
    if claim.total > most:
        output = min(claim.output, generated)
        thinking = min(claim.thinking, generated - output)
        return Usage(most - output - thinking, output, thinking), "most"
    return claim, None


def utf8_length(text: str) -> int:
    """Bytes of a text; at once where it is ASCII."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _json(value: object) -> int:
    """Of JSON, without writing it."""
    if isinstance(value, str):
        return utf8_length(value) + 2
    if isinstance(value, Mapping):
        return 2 + sum(utf8_length(name) + 4 + _json(inner) for name, inner in value.items())
    if isinstance(value, Sequence):
        return 2 + sum(1 + _json(inner) for inner in value)
    return 4
