"""Ids of tool calls in Anthropic's protocol, which carry the signature that the provider gave a call, if any.

A provider such as Gemini refuses a conversation whose calls lack their signatures. The protocol has no field for them;
every client returns the id of a call as it is.
"""

from agentos_sdk.values import ToolCall

SEPARATOR = "__signed__"
DIGITS = str.maketrans("+/=", "-_.")  # base64 in the letters that a URL, and thus an id, may have
FROM_DIGITS = str.maketrans("-_.", "+/=")


def join_call_id(call: ToolCall) -> str:
    return f"{call.id}{SEPARATOR}{call.signature.translate(DIGITS)}" if call.signature else call.id


def split_call_id(id: str) -> tuple[str, str | None]:
    """The id that the provider gave a call, and the call's signature."""
    own, separator, signature = id.rpartition(SEPARATOR)
    return (own, signature.translate(FROM_DIGITS)) if separator else (id, None)
