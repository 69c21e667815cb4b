"""Events out of bytes: however they are cut, and never without an end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.http.sse import MAX_EVENT, EventParser
from agentos.llm.answers.malformed import MalformedResponse
from agentos.llm.stream import MAX_STREAM

STREAM = (
    b": a comment\r\n\r\n"
    b'data:{"a":\r\ndata: 1}\r\n\r\n'
    b"event: message\ndata: \xe2\x80\xa8 two\n\n\n\n"
    b"id: 5\ndata: last\n\n"
    b"data: never ended\n"
)
EVENTS = [b'{"a":\n1}', b"\xe2\x80\xa8 two", b"last"]


def fed(*chunks: bytes) -> list[bytes]:
    events = EventParser(MalformedResponse, MAX_STREAM)
    return [event for chunk in chunks for event in events.feed(chunk) if event]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_survive_any_splitting_of_the_stream(cuts: list[int]) -> None:
    chunks = [STREAM[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(STREAM)])]

    assert fed(*chunks) == EVENTS


@pytest.mark.parametrize("piece", [b"x" * 4096, b"data: x\n" * 512], ids=["a line", "many lines"])
def test_an_event_has_an_end(piece: bytes) -> None:
    with pytest.raises(MalformedResponse, match="an event of more than 1 MiB"):
        fed(b"data: ", *[piece] * (MAX_EVENT // 4096))


def test_each_event_may_be_as_large_as_any() -> None:
    text = b"x" * (MAX_EVENT - len(b"data: \n\n"))

    assert fed(b"data: %b\n\ndata: %b\n\n" % (text, text)) == [text, text]
    with pytest.raises(MalformedResponse, match="an event of more than 1 MiB"):
        fed(b"data: x%b\n\n" % text)


def test_a_stream_has_an_end() -> None:
    chunk = b": still there\n\n" + b"x" * (MAX_EVENT // 2) + b"\n\n"

    with pytest.raises(MalformedResponse, match="without an end"):
        fed(*[chunk] * (MAX_STREAM // len(chunk) + 1))
