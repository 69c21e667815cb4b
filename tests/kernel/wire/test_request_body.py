"""Bodies whose message is passed on unread are judged no milder than those that are made into values."""

import json
import re
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.kernel.wire.request_body import MAX_INLINE_BYTES, read
from agentos_sdk.calls.messages import Send
from agentos_sdk.calls.operator.permissions import Explain
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.nesting import MAX_DIGITS
from agentos_sdk.errors import BadRequest
from tests.support.runs.rows import each_row

ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
BYTES = [b"[", b"]", b"{", b"}", b'"', b":", b",", b"\\", b"1", b"-", b".", b" ", b"\n", b"\x01", b"\xff", b"\xc3\xa9"]
WORDS = [b"e9999", b"NaN", b"null", b"\\ud800", b'"message"', b'"to"']
PIECES = st.sampled_from(BYTES + WORDS)


# Numbers that not every reader can hold, and half of a surrogate pair: JSON, but refused in a large body.
ODD = re.compile(rb"[0-9]{%d}|[eE][+-]?[0-9]{3}|\\u[dD][89a-fA-F]" % MAX_DIGITS)


def outcome(body: bytes, verbatim: tuple[str, ...]) -> object:
    """The message that a SEND with this body carries, or that it is refused."""
    try:
        request = read(Send, body, verbatim)
    except BadRequest:
        return BadRequest
    if verbatim:
        assert isinstance(request.message, msgspec.Raw)
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


@given(ANYTHING | st.lists(PIECES, max_size=12).map(b"".join))
@pytest.mark.parametrize("verbatim", [(), ("message",)])
def test_so_is_a_large_body_in_which_nothing_is_odd(verbatim: tuple[str, ...], message: object) -> None:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    body = b'{"to":1,"message":' + data + b"}"

    found = outcome(body + b" " * MAX_INLINE_BYTES, verbatim)

    assert found == outcome(body, ()) or (found is BadRequest and ODD.search(body))


@each_row("number", [b"1" + b"0" * 350 + b".0", b"9" * 230 + b"e99", b"1e400", b"-1E+308123"])
@each_row("padding", [0, MAX_INLINE_BYTES])
def test_no_message_has_a_number_that_becomes_infinity_where_it_is_read(number: bytes, padding: int) -> None:
    with pytest.raises(BadRequest):
        read(Send, b'{"to":1,"message":[' + number + b"]}" + b" " * padding, ("message",))


@each_row(
    ("body", "told"),
    [
        (b'{"to":1,"message":[1,]', "byte 21"),
        (b'{"to":1,"message":"\xff"', "byte 19"),
        (b'{"to":1,"message":"a\x00"', "byte 20"),
        (b'{"to":1,"massage":1', "massage"),
        (b'{"to":["a"],"message":1', "to: expected a whole number or a string"),
        (b'{"to":1,"message":[1e999]', "an exponent of three"),
        (b'{"to":1,"message":"\\ud800"', "half a surrogate pair"),
    ],
)
def test_a_large_body_is_refused_with_the_place(body: bytes, told: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(told)):
        read(Send, body + b" " * MAX_INLINE_BYTES + b"}", ("message",))


def test_values_of_unknown_fields_are_not_read() -> None:
    def seconds(body: bytes) -> float:
        took = []
        for _ in range(3):
            began = time.thread_time()
            with pytest.raises(BadRequest):
                read(Send, body, ("message",))
            took.append(time.thread_time() - began)
        return min(took)

    many = b"{" + b",".join(b'"k%d":1' % number for number in range(74_000)) + b"}"
    one = b'{"k":"' + b"a" * len(many) + b'"}'

    assert seconds(many) < 20 * seconds(one)  # 2 times as long; 100 times if each of them is read


def test_more_than_10_000_arrays_in_a_large_body_are_refused() -> None:
    def explain(count: int) -> object:
        return read(Explain, b'{"agent":1,"call":"SEND","args":{"a":[' + b'["["],' * count + b"0]}}")

    assert explain(9_990)
    with pytest.raises(BadRequest, match="more than 10000 arrays and objects"):
        explain(12_000)
