"""Bodies whose message is passed on unread are judged no milder than those that are made into values."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentos.kernel.body import Verbatim, read
from agentos_sdk import codec
from agentos_sdk.calls.messages import Send
from agentos_sdk.errors import BadRequest

ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
BYTES = [b"[", b"]", b"{", b"}", b'"', b":", b",", b"\\", b"1", b"-", b".", b" ", b"\n", b"\x01", b"\xff", b"\xc3\xa9"]
WORDS = [b"e9999", b"NaN", b"null", b"\\ud800", b'"message"', b'"to"']
PIECES = st.sampled_from(BYTES + WORDS)


def outcome(body: bytes, verbatim: tuple[str, ...]) -> object:
    """The message that a SEND with this body carries, or that it is refused."""
    try:
        request = read(Send, body, verbatim)
    except BadRequest:
        return BadRequest
    if verbatim:
        assert isinstance(request.message, Verbatim)
        return codec.parse(bytes(request.message))
    return request.message


@given(ANYTHING)
def test_a_message_is_passed_on_or_refused_as_if_it_had_been_read(message: object) -> None:
    body = json.dumps({"to": 1, "message": message}).encode()  # with NaN and Infinity, which are no JSON

    assert outcome(body, ("message",)) == outcome(body, ())


@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_so_is_what_is_hardly_json(message: bytes) -> None:
    body = b'{"to":1,"message":' + message + b"}"

    assert outcome(body, ("message",)) == outcome(body, ())


@given(st.lists(PIECES, max_size=16).map(b"".join) | st.binary(max_size=40))
def test_so_is_what_is_none_at_all(body: bytes) -> None:
    assert outcome(body, ("message",)) == outcome(body, ())


@given(st.integers(0, 70), st.sampled_from([b"[", b'{"a":', b'["[",']))
def test_so_is_what_is_deep(depth: int, opening: bytes) -> None:
    closing = b"}" if opening[:1] == b"{" else b"]"
    body = b'{"to":1,"message":' + opening * depth + b"1" + closing * depth + b"}"

    assert outcome(body, ("message",)) == outcome(body, ())
