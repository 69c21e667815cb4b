"""Plausibility limits for the token counts that a provider reports. No I/O.

Nothing else counts tokens, and budgets are charged by these counts: a provider that reports 1 token for everything
would make budgets worthless, and one that reports a billion would use them up at once.
"""

from typing import Literal

from attrs import evolve
from msgspec import Struct

from agentos.llm.providers.provider import Question, json_bytes
from agentos_sdk.values import Usage

Bound = Literal["least", "most"]

MAX_BYTES_PER_TOKEN = 16  # bytes of text per token at most; English has about 4
ENVELOPE_BYTES = 32  # bytes of JSON around each message, tool and call: vendors count tokens for these, too
MAX_TOKENS_PER_IMAGE = 48_169  # gpt-4o-mini's 2,833 and 5,667 for each of at most 8 tiles, the most of any model
MAX_GENERATED_TOKENS = 128 << 10  # tokens of an answer, whatever the request's limit: the largest models stop there


class RequestSize(Struct, frozen=True):
    """Size of a request: ``size`` in bytes without images; texts and JSON as UTF-8."""

    size: int
    images: int


def measure_request(question: Question) -> RequestSize:
    """Measure a request; takes some milliseconds for texts of several MiB."""
    size = utf8_length(question.system or "") + ENVELOPE_BYTES
    for message in question.messages:
        size += ENVELOPE_BYTES + utf8_length(message.text)
        size += sum(ENVELOPE_BYTES + utf8_length(call.name) + json_bytes(call.arguments) for call in message.calls)
    for tool in question.tools:
        size += ENVELOPE_BYTES + utf8_length(tool.name) + utf8_length(tool.description) + json_bytes(tool.parameters)
    size += json_bytes(question.response_schema) if question.response_schema is not None else 0
    return RequestSize(size, sum(len(message.images) for message in question.messages))


def limit_claim(claim: Usage, sent: RequestSize, received: int, max_tokens: int | None) -> tuple[Usage, Bound | None]:
    """The usage to charge: the claim limited to the plausible range, and which limit was applied.

    ``received`` is in bytes; ``max_tokens`` is the request's limit. The least is one token per
    :data:`MAX_BYTES_PER_TOKEN` bytes sent and received. The most is one token per byte, plus the maximum cost of the
    images, plus ``max_tokens`` or :data:`MAX_GENERATED_TOKENS`, whichever is less.
    """
    least = -(-(sent.size + received) // MAX_BYTES_PER_TOKEN)
    if claim.total < least:
        tokens_in = max(claim.input, -(-sent.size // MAX_BYTES_PER_TOKEN))
        output = max(claim.output, least - tokens_in - claim.thinking)
        return evolve(claim, input=tokens_in, output=output), "least"
    generated = received + min(MAX_GENERATED_TOKENS, MAX_GENERATED_TOKENS if max_tokens is None else max_tokens)
    most = sent.size + MAX_TOKENS_PER_IMAGE * sent.images + generated
    if claim.total > most:
        output = min(claim.output, generated)
        thinking = min(claim.thinking, generated - output)
        return evolve(claim, output=output, thinking=thinking).with_input(most - output - thinking), "most"
    return claim, None


def utf8_length(text: str) -> int:
    """Length of a text in bytes of UTF-8; constant time if it is ASCII."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
