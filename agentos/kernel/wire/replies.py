"""Replies: encodes what a call returned, or the error with which it failed."""

from collections.abc import Mapping

import trio

from agentos.kernel.internal_errors import internal
from agentos_sdk.encoding import codec
from agentos_sdk.errors import CallError

MAX_ERROR = 8 << 10  # characters of an error text, which may quote the request


def encode_reply(reply: object) -> bytes:
    """Encode a reply that isn't bytes already."""
    return reply if isinstance(reply, bytes) else codec.encode(reply)


async def encode_in_turns(reply: object) -> bytes:
    """Encode like :func:`encode_reply`; other tasks run between the pieces of a long list."""
    if isinstance(reply, bytes):
        return reply
    pieces: list[bytes] = []
    for piece in codec.encode_pieces(reply):
        if pieces:
            await trio.lowlevel.checkpoint()
        pieces.append(piece)
    return b"".join(pieces)


def encode_error(error: BaseException, call: str = "the core", failure: Mapping[str, object] = {}) -> bytes:
    """The body of a failed reply; ``failure`` holds further keys of it.

    A caller's error says what to do; an internal error is logged under a reference, with the name of the ``call``.
    """
    if not isinstance(error, CallError):
        error = internal(error, call)
    text = str(error)
    if len(text) > MAX_ERROR:
        text = f"{text[:MAX_ERROR]}…"
    return codec.encode({"success": False, "error": text, "code": error.code, **failure, **error.details})
