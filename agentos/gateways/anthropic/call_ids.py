"""Ids of tool calls in Anthropic's protocol, which carry the signature that the provider gave a call, if any.

A provider such as Gemini refuses a conversation if its tool calls have no signatures. The protocol has no field for
them; every client returns the id of a call as it is.
"""

from base64 import b64decode, urlsafe_b64encode

from agentos_sdk.values import ToolCall

SEPARATOR = "__signed__"


def join_call_id(call: ToolCall) -> str:
    """The signature is any text, Claude's is JSON: an id has letters, digits, ``_`` and ``-``."""
    if not call.signature:
        return call.id
    return call.id + SEPARATOR + urlsafe_b64encode(call.signature.encode()).decode().rstrip("=")


def split_call_id(id: str) -> tuple[str, str | None]:
    """The id that the provider gave a call, and the call's signature."""
    own, separator, signature = id.rpartition(SEPARATOR)
    if not separator or not signature:
        return id, None
    try:
        return own, b64decode(signature + "=" * (-len(signature) % 4), altchars="-_", validate=True).decode()
    except ValueError:
        return id, None
