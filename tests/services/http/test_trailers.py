"""Trailers, and sizes of chunks: h11 parses each as a whole, so the kernel takes few bytes of them."""

import trio

from agentos.services.http.connections import MAX_UNPARSED_BYTES
from agentos_sdk.errors import Unavailable
from tests.support.runs.rows import each_row
from tests.support.servers.http_server import Asked, http_server, response

from .test_leftover_bytes import HEAD, asking

CHUNKED = HEAD % (b"200 OK", b"Transfer-Encoding: chunked")
FEW = b"5\r\nwhole\r\n0\r\n" + b"a: b\r\n" * 100 + b"\r\n"


def ask(answer: bytes, piece: int) -> str:
    """What is received of an answer that is sent in pieces of this size, or the error; another is received then."""

    async def send(stream: trio.abc.Stream, asked: Asked) -> None:
        for at in range(0, len(answer), piece):
            await stream.send_all(answer[at : at + piece])

    async def check() -> str:
        async with asking(server) as asker:
            try:
                told = (await asker.ask("/first"))[1].decode()
            except Unavailable as error:
                told = str(error)
            assert await asker.ask("/next") == (200, b"next")
            return told

    with http_server({"/first": send, "/next": response(b"next")}) as server:
        return trio.run(check)


@each_row("piece", [1 << 20, 1000])
@each_row(
    "body",
    [
        b"0\r\n" + b"a:\r\n" * 25_000 + b"\r\n",
        b"5\r\nwhole\r\n0\r\n" + b"a: " + b"b" * 100_000 + b"\r\n\r\n",
        b"5\r\nwhole\r\n0\r\n" + b"a: b\r\n c\r\n" * 10_000 + b"\r\n",
        b"5;" + b"x" * 100_000 + b"\r\nwhole\r\n0\r\n\r\n",
    ],
)
def test_more_than_a_few_bytes_of_them_end_the_response(body: bytes, piece: int) -> None:
    said = f"more than {MAX_UNPARSED_BYTES >> 10} KiB of trailers, or of a chunk's size"

    assert said in ask(CHUNKED + body, piece)


@each_row("piece", [1 << 20, 7])
def test_a_few_trailers_are_taken_and_dropped(piece: int) -> None:
    assert ask(CHUNKED + FEW, piece) == "whole"
