"""Signatures of tool calls in ``reasoning`` items of OpenAI's Responses. No I/O.

Programs that keep no response at the server, such as Codex, send back each item of a conversation, but of a call only
OpenAI's own fields. So where they include ``reasoning.encrypted_content``, the signatures of an answer's calls, which
some vendors require back, are in a reasoning item before the calls.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from agentos_sdk.encoding import codec
from agentos_sdk.values import ToolCall

INCLUDED = "reasoning.encrypted_content"
BEGIN = "agentos-signatures:"  # of a content that isn't another server's


def reasoning_item(id: str, calls: Sequence[ToolCall]) -> dict[str, Any] | None:
    """The item for an answer's calls; None if none of them has a signature."""
    signatures = {call.id: call.signature for call in calls if call.signature}
    if not signatures:
        return None
    content = BEGIN + b64encode(codec.encode(signatures)).decode()
    return {"type": "reasoning", "id": id, "summary": [], "encrypted_content": content}


def read_signatures(content: object) -> Mapping[str, str]:
    """The signatures in an item, by the ids of their calls; none in what is another server's, or was changed."""
    if not isinstance(content, str) or not content.startswith(BEGIN):
        return {}
    try:
        found = codec.parse(b64decode(content.removeprefix(BEGIN), validate=True))
    except ValueError:
        return {}
    if not isinstance(found, dict) or not all(isinstance(each, str) and each for each in found.values()):
        return {}
    return found
