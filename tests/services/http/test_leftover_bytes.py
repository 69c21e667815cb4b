"""Bytes behind a response answer no other request: the connection that brought them is not used again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, field

from agentos.services.http.client import Client
from agentos.services.http.egress import Egress
from agentos.services.http.request import OutgoingRequest, Permit
from agentos.services.http.settings import trust
from tests.support.runs.rows import each_row
from tests.support.servers.http_server import (
    Asked,
    HttpServer,
    http_server,
    make_authority,
    make_server_context,
    response,
)
from tests.support.wire import PATIENCE

from .test_secret_requests import allow, follow

OWNER = 7
FORGED = response(b"forged", Set_Cookie="forged=1")
HEAD = b"HTTP/1.1 %s\r\n%s\r\n\r\n"


@define
class Asker:
    """Asks a server, as one caller, over connections that may be kept."""

    server: HttpServer
    client: Client
    permit: Permit = field(factory=lambda: Permit(allow, follow, lambda to: None))

    async def ask(self, path: str, method: str = "GET", *, reads: bool = True) -> tuple[int, bytes]:
        hop = follow(method, self.server.url(path))
        assert hop is not None
        with trio.fail_after(PATIENCE):
            async with self.client.request(OWNER, OutgoingRequest(hop, max_redirects=5), self.permit) as found:
                body = bytes((await found.read_all(1 << 20))[0]) if reads else b""
                return found.status, body


@asynccontextmanager
async def asking(server: HttpServer, authority: Path | None = None) -> AsyncIterator[Asker]:
    client = Client(Egress(), authorities=trust(str(authority)) if authority else None)
    try:
        yield Asker(server, client)
    finally:
        client.forget(OWNER)


BEHIND = [
    ("GET", response(b"first") + FORGED),
    ("GET", response(b"first") + b"H"),
    ("GET", response(b"first") + b"\r\n"),
    ("GET", HEAD % (b"200 OK", b"Transfer-Encoding: chunked") + b"5\r\nfirst\r\n0\r\n\r\n" + FORGED),
    ("GET", HEAD % (b"200 OK", b"Content-Length: 900\r\nTransfer-Encoding: chunked") + b"0\r\n\r\n"),
    ("GET", HEAD % (b"304 Not Modified", b"Content-Length: 4") + b"body"),
    ("GET", HEAD % (b"204 No Content", b"X: y") + FORGED),
    ("GET", HEAD % (b"302 Found", b"Location: /next\r\nContent-Length: 0") + FORGED),
    ("HEAD", response(b"a body where none belongs")),
    ("HEAD", HEAD % (b"200 OK", b"Content-Length: 0") + FORGED),
    ("POST", response(b"", 201) + FORGED),
]


def took_no_more_after(server: HttpServer, path: str) -> bool:
    """Whether no connection had a request after one for ``path``."""
    last: dict[int, str] = {}
    for one in server.asked:
        if last.get(one.connection) == path:
            return False
        last[one.connection] = one.target
    return True


@each_row("method, answer", BEHIND)
def test_it_answers_no_other_request(method: str, answer: bytes) -> None:
    async def check() -> None:
        async with asking(server) as asker:
            await asker.ask("/first", method)
            assert await asker.ask("/next") == (200, b"next")
            await asker.ask("/first", method, reads=False)
            assert await asker.ask("/next") == (200, b"next")

    with http_server({"/first": answer, "/next": response(b"next")}) as server:
        trio.run(check)

    assert took_no_more_after(server, "/first")


@each_row("second", [FORGED, b"H", FORGED * 300])
def test_it_answers_no_other_request_out_of_tls(tmp_path: Path, second: bytes) -> None:
    """A record of its own, which TLS has read from the socket with the one before it, and not opened."""

    async def answer(stream: trio.abc.Stream, asked: Asked) -> None:
        assert isinstance(stream, trio.SSLStream)
        stream._ssl_object.write(response(b"first"))
        stream._ssl_object.write(second)
        tickets, stream._delayed_outgoing = (
            stream._delayed_outgoing or b"",
            None,
        )  # Trio sends them with what comes first
        await stream.transport_stream.send_all(tickets + stream._outgoing.read())

    async def check() -> None:
        async with asking(server, authority) as asker:
            assert await asker.ask("/first") == (200, b"first")
            assert await asker.ask("/next") == (200, b"next")

    authority = make_authority(tmp_path)
    context = make_server_context(tmp_path, "IP:127.0.0.1")
    with http_server({"/first": answer, "/next": response(b"next")}, context) as server:
        trio.run(check)

    assert took_no_more_after(server, "/first")


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_connection_is_kept_where_nothing_is_behind(tmp_path: Path, encrypted: bool) -> None:
    async def check() -> None:
        async with asking(server, authority if encrypted else None) as asker:
            for path in ("/whole", "/chunked", "/none", "/whole"):
                assert await asker.ask(path) == (200, b"" if path == "/none" else b"whole")

    chunked = HEAD % (b"200 OK", b"Transfer-Encoding: chunked") + b"5\r\nwhole\r\n0\r\n\r\n"
    answers = {"/whole": response(b"whole"), "/chunked": chunked, "/none": response(b"")}
    authority = make_authority(tmp_path)
    with http_server(answers, make_server_context(tmp_path, "IP:127.0.0.1") if encrypted else None) as server:
        trio.run(check)

    assert server.connections == 1
