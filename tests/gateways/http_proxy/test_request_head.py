"""Heads and bodies that servers could read in different ways are refused: no request is smuggled within another."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from agentos.gateways.http_proxy import incoming
from agentos.gateways.http_proxy.incoming import Body, Incoming
from agentos.gateways.http_proxy.request_head import MAX_HEAD_BYTES, MAX_HEADERS, BadHead, parse_head
from tests.support.runs.rows import each_row

from .streams import connected

GET = b"GET http://a.example/x?y HTTP/1.1\r\nHost: a.example\r\n"


def test_a_head_is_parsed_and_what_belongs_to_the_connection_is_dropped() -> None:
    head = parse_head(
        GET + b"X-One: 1\r\nConnection: Keep-Alive, x-TWO\r\nX-Two: 2\r\nProxy-Authorization: Basic eA==\r\n"
        b"TE: trailers\r\nUpgrade: h2c\r\nx-one: 3\r\nExpect: 100-Continue\r\nContent-Length: 12\r\n\r\n"
    )

    assert (head.method, head.target, head.host) == ("GET", "http://a.example/x?y", "a.example")
    assert list(head.headers) == [(b"X-One", b"1"), (b"x-one", b"3")]
    assert (head.length, head.keep_alive, head.expects_continue) == (12, True, True)


def test_chunks_and_the_end_of_a_connection_are_seen() -> None:
    assert parse_head(GET + b"Transfer-Encoding: CHUNKED\r\n\r\n").length is None
    assert not parse_head(GET + b"Proxy-Connection: Close\r\n\r\n").keep_alive
    assert not parse_head(GET.replace(b"1.1", b"1.0") + b"\r\n").keep_alive


@each_row(
    "head",
    [
        GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        GET + b"Content-Length: 5\r\ncontent-length: 5\r\n\r\n",
        GET + b"Content-Length: +5\r\n\r\n",
        GET + b"Content-Length: 0x5\r\n\r\n",
        GET + b"Content-Length: -1\r\n\r\n",
        GET + b"Content-Length: 5, 6\r\n\r\n",
        GET + b"Content-Length: 99999999999999999999\r\n\r\n",
        GET + b"Content-Length : 5\r\n\r\n",
        GET + b" Content-Length: 5\r\n\r\n",
        GET + b"X: 1\r\n\tContent-Length: 5\r\n\r\n",
        GET + b"X: 1\nContent-Length: 5\r\n\r\n",
        GET + b"X: 1\rContent-Length: 5\r\n\r\n",
        GET + b"X: 1\0\r\n\r\n",
        GET + b"X\x0b: 1\r\n\r\n",
        GET + b"X: \r\n\x0b1\r\n\r\n",
        GET + b": 1\r\n\r\n",
        GET + b"no colon\r\n\r\n",
        GET + b"Transfer-Encoding: identity\r\n\r\n",
        GET + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        GET + b"Transfer-Encoding: xchunked\r\n\r\n",
        GET + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        GET + b"Transfer-Encoding : chunked\r\n\r\n",
        GET.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n",
        GET + b"Host: b.example\r\n\r\n",
        GET.replace(b"Host: a.example\r\n", b"") + b"\r\n",
        GET.replace(b"GET ", b"GET  ") + b"\r\n",
        GET.replace(b"GET ", b"GET\t") + b"\r\n",
        GET.replace(b" HTTP/", b"\t HTTP/") + b"\r\n",
        GET.replace(b"HTTP/1.1", b"http/1.1") + b"\r\n",
        GET.replace(b"HTTP/1.1\r\n", b"\r\n") + b"\r\n",
        b"\r\n" + GET + b"\r\n",
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\n",
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n",
        GET + b"".join(b"X%d: 1\r\n" % number for number in range(MAX_HEADERS)) + b"\r\n",
        GET.replace(b"\r\n", b"\n") + b"\n",
        GET,
    ],
)  # fmt: skip
def test_a_head_that_can_be_read_in_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(BadHead):
        parse_head(head)


def test_a_websocket_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(BadHead, match="use wss://"):
        parse_head(GET + b"Connection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
    assert parse_head(GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n").method == "GET", "curl --http2 offers it"


@given(st.integers(0, 90), st.binary(max_size=12))
def test_no_change_to_a_head_does_anything_else_than_be_refused_or_parsed(at: int, changed: bytes) -> None:
    head = GET + b"Content-Length: 5\r\nAccept: */*\r\n\r\n"
    try:
        parsed = parse_head(head[:at] + changed + head[at + len(changed) :])
    except BadHead:
        return
    assert all(b"\r" not in value and b"\n" not in value for _, value in parsed.headers)


async def receive(*sent: bytes) -> Incoming:
    """What arrives if a client sends this, in these pieces, and disconnects."""
    ours, theirs = await connected()
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for piece in sent:
                await theirs.send_all(piece)
            await theirs.aclose()

        nursery.start_soon(send)
    return Incoming(ours)


async def read_body(sent: bytes, length: int | None) -> tuple[bytes, bytes]:
    """A body, and what was sent after it."""
    found = await receive(sent)
    body, data = Body(found, length), b""
    async with found.stream:
        while piece := await body.receive():
            data += piece
        while await found._receive():
            pass
    return data, bytes(found.buffer)


async def test_heads_are_read_one_after_another() -> None:
    found = await receive(GET + b"\r\n" + GET[:9], GET[9:] + b"\r", b"\n")
    async with found.stream:
        heads = [await found.read_head(5), await found.read_head(5), await found.read_head(5)]

    assert heads == [GET + b"\r\n", GET + b"\r\n", None]


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\nHost: a\n\n", b"x\ry", b"x" * (MAX_HEAD_BYTES + 1)])
async def test_a_head_that_never_ends_well_is_refused_before_its_end(sent: bytes) -> None:
    found = await receive(sent)
    async with found.stream:
        with pytest.raises(BadHead):
            await found.read_head(5)


async def test_a_head_that_comes_slowly_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "HEAD_SECONDS", 0.2)
    ours, theirs = await connected()

    async def drip() -> None:
        while True:
            await theirs.send_all(b"X")
            await trio.sleep(0.02)

    async with ours, theirs, trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        with pytest.raises(trio.TooSlowError):
            await Incoming(ours).read_head(5)
        nursery.cancel_scope.cancel()


async def test_a_silent_connection_ends() -> None:
    ours, theirs = await connected()
    async with ours, theirs:
        assert await Incoming(ours).read_head(0.1) is None


async def test_a_body_ends_exactly_where_it_says() -> None:
    assert await read_body(b"helloGET", 5) == (b"hello", b"GET")
    assert await read_body(b"5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\nGET", None) == (b"hello0123456789", b"GET")
    assert await read_body(b"GET", 0) == (b"", b"GET")


@each_row(
    "sent",
    [
        b"5;x=1\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n", b"\r\nhello", b"5\nhello\n0\n\n", b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nX: 1\r\n\r\n", b"5\r\nhello\r\n", b"5\r\nhel", b"F" * 16 + b"\r\n", b"F" * 100, b"",
    ],
)  # fmt: skip
async def test_chunks_that_can_be_read_in_two_ways_are_refused(sent: bytes) -> None:
    with pytest.raises(BadHead):
        await read_body(sent, None)


async def test_a_body_that_ends_early_is_an_error() -> None:
    with pytest.raises(BadHead, match="ends too early"):
        await read_body(b"hel", 5)
