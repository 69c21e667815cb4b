"""What a server that gets a secret can do with it, and what the caller of the request sees of that: nothing."""

import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import field, frozen

from agentos.permissions.patterns.domains import parse_domain_pattern
from agentos.services.http.client import Client
from agentos.services.http.destination import Destination, parse_url
from agentos.services.http.egress import Egress, JudgeAddress
from agentos.services.http.request import Headers, Hop, OutgoingRequest, Permit
from agentos.services.http.secrets import MARK, Secrets, SecretSettings
from agentos.services.http.settings import HttpSettings
from agentos_sdk.errors import Unavailable
from tests.support.runs.rows import each_row

TOKEN = "ghp_0123456789'abcdef"
Answer = Callable[[trio.SocketStream, bytes], Awaitable[None]]


def allow(destination: Destination) -> JudgeAddress:
    return lambda address, port: None


def follow(method: str, url: str) -> Hop | None:
    try:
        return Hop(*parse_url(url, method))
    except ValueError:
        return None


@frozen
class Server:
    """Answers each connection's one request by ``answer``; ``heads`` are the requests that it got."""

    port: int
    heads: list[bytes] = field(factory=list)

    @property
    def tokens(self) -> Sequence[bool]:
        """Which requests had the secret."""
        return [TOKEN.encode() in head for head in self.heads]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = Server(listeners[0].socket.getsockname()[1])

        async def serve(stream: trio.SocketStream) -> None:
            head = b""
            async with stream:
                while b"\r\n\r\n" not in head and (part := await stream.receive_some()):
                    head += part
                server.heads.append(head)
                await answer(stream, head)

        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield server
        nursery.cancel_scope.cancel()


@frozen
class Reply:
    status: int
    headers: Headers
    body: bytes


async def send(
    server: Server,
    path: str = "/",
    headers: Headers = (),
    method: str = "GET",
    before: str = "",
    token: str = TOKEN,
    holds: bool = True,
) -> Reply:
    """The reply to a request. ``before`` is the secret's value until the request is on its way.

    The caller ``holds`` the secret, or another one does.
    """
    place = parse_domain_pattern(f"127.0.0.1:{server.port}")
    secrets, settings = Secrets(), [SecretSettings("t", [place], "X-Token", "Key ", "env:T")]
    secrets.replace(settings, {"t": before or token})
    permit = Permit(
        allow,
        follow,
        lambda to: None,
        lambda to: secrets.headers_for(["t"] if holds else [], to),
        secrets.redactor,
        lambda *_: secrets.replace(settings, {"t": TOKEN}) if before and not server.heads else None,
    )
    hop = follow(method, f"http://127.0.0.1:{server.port}{path}")
    assert hop is not None
    client = Client(Egress(HttpSettings()))
    try:
        async with client.request(1, OutgoingRequest(hop, headers, max_redirects=5), permit) as response:
            body, truncated = await response.read_all(1 << 20)
            assert not truncated
            return Reply(response.status, response.headers, bytes(body))
    finally:
        client.forget(1)


def plain(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in (*headers, f"Content-Length: {len(body)}", "Connection: close"))
    return f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body


async def test_the_kernel_adds_the_header_in_place_of_the_callers() -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(b"ok"))

    async with serving(answer) as server:
        assert (await send(server, headers=[("x-TOKEN", "mine"), ("accept", "*/*")])).body == b"ok"

    [head] = server.heads
    assert f"X-Token: Key {TOKEN}\r\n".encode() in head
    assert b"mine" not in head


async def test_a_header_that_repeats_it_is_redacted() -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(b"", f"X-Echo: a{TOKEN}b", f"Set-Cookie: t={TOKEN}"))

    async with serving(answer) as server:
        reply = await send(server)

    assert ("x-echo", f"a{MARK}b") in reply.headers
    assert TOKEN not in str(reply.headers)


async def test_a_headers_name_that_repeats_it_is_redacted() -> None:
    name = TOKEN.upper()

    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(b"", f"X-{name}-Y: 1"))

    async with serving(answer) as server:
        reply = await send(server, token=name)

    assert (f"x-{MARK}-y", "1") in reply.headers
    assert name.lower() not in str(reply.headers)


@each_row(
    "asked, sent",
    [
        ("br, zstd", "gzip, deflate"),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", "gzip;q=0.8"),
        ("*", "gzip, deflate"),
        ("identity", "identity"),
        ("Deflate, ZSTD, x-gzip", "Deflate, x-gzip"),
        ("dcb, compress, gzip ;q=0.5", "gzip ;q=0.5"),
    ],
)
@pytest.mark.parametrize("held", [True, False], ids=["its own secret", "another's secret"])
async def test_a_caller_cannot_ask_for_a_coding_that_hides_it(asked: str, sent: str, held: bool) -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(b"ok"))

    async with serving(answer) as server:
        await send(server, headers=[("accept-encoding", asked)], holds=held)

    [head] = server.heads
    assert f"Accept-Encoding: {sent}\r\n".encode() in head
    assert head.lower().count(b"accept-encoding") == 1


@each_row("coding", ["br", "zstd", "gzip, br", "gzip, gzip", "compress", "gz ip", "aes128gcm"])
async def test_a_body_in_a_coding_that_hides_it_is_refused(coding: str) -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(b"any", f"Content-Encoding: {coding}"))

    async with serving(answer) as server:
        for held in (True, False):
            with pytest.raises(Unavailable, match="content coding in which the kernel can't look for secrets"):
                await send(server, holds=held)


@each_row("method, coding, body", [("HEAD", "br", b""), ("GET", "br", b""), ("GET", "Identity", b"any")])
async def test_a_coding_that_hides_nothing_passes(method: str, coding: str, body: bytes) -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(body, f"Content-Encoding: {coding}"))

    async with serving(answer) as server:
        assert (await send(server, method=method)).body == body


async def test_a_value_that_changes_between_two_redirects_is_redacted() -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        if head.startswith(b"GET /moved"):
            await stream.send_all(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n")
        else:
            await stream.send_all(plain(head))

    async with serving(answer) as server:
        reply = await send(server, "/moved", before="another-value")

    assert server.tokens == [False, True]
    assert TOKEN.encode() not in reply.body


@pytest.mark.parametrize("size", [1, 2, 7, 20, 1000])
async def test_a_body_split_anywhere_is_redacted(size: int) -> None:
    body = f"xx{TOKEN}yy{TOKEN[:-1]} {TOKEN}".encode()

    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        for start in range(0, len(body), size):
            part = body[start : start + size]
            await stream.send_all(b"%x\r\n%s\r\n" % (len(part), part))
        await stream.send_all(b"0\r\n\r\n")

    async with serving(answer) as server:
        reply = await send(server)

    assert reply.body == f"xx{MARK}yy{TOKEN[:-1]} {MARK}".encode()


async def test_a_compressed_body_is_redacted() -> None:
    packed = gzip.compress(f"a{TOKEN}b".encode())

    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(packed, "Content-Encoding: gzip"))

    async with serving(answer) as server:
        assert (await send(server)).body == f"a{MARK}b".encode()


async def test_it_is_sent_again_after_a_redirect_on_the_same_host_and_port() -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        moved = plain(b"ok") if b"/next" in head else plain(b"", "Location: /next").replace(b"200 OK", b"302 Found")
        await stream.send_all(moved)

    async with serving(answer) as server:
        assert (await send(server)).body == b"ok"

    assert server.tokens == [True, True]


async def test_it_is_not_sent_to_another_port_nor_back_after_that() -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        if b"/back" in head:
            return await stream.send_all(plain(b"back"))
        where = f"http://127.0.0.1:{other.port}/"
        return await stream.send_all(plain(b"", f"Location: {where}").replace(b"200 OK", b"307 Moved"))

    async def answer_other(stream: trio.SocketStream, head: bytes) -> None:
        where = f"http://127.0.0.1:{server.port}/back"
        await stream.send_all(plain(b"", f"Location: {where}").replace(b"200 OK", b"307 Moved"))

    async with serving(answer) as server, serving(answer_other) as other:
        assert (await send(server)).body == b"back"

    assert (server.tokens, other.tokens) == ([True, False], [False])


@pytest.mark.parametrize("where", [f"/?t={TOKEN}", f"/{TOKEN}", f"http://localhost/{TOKEN}", f"http://{TOKEN}.x/"])
async def test_a_redirect_that_carries_it_is_not_followed(where: str) -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(plain(b"", f"Location: {where}").replace(b"200 OK", b"302 Found"))

    async with serving(answer) as server:
        reply = await send(server)

    assert reply.status == 302
    assert ("location", where.replace(TOKEN, MARK)) in reply.headers
    assert len(server.heads) == 1


@pytest.mark.parametrize("broken", [f"HTTP/1.1 200 OK\r\n{TOKEN} x\r\n\r\n", f"{TOKEN} x\r\n\r\n"])
async def test_an_error_about_broken_http_does_not_quote_it(broken: str) -> None:
    async def answer(stream: trio.SocketStream, head: bytes) -> None:
        await stream.send_all(broken.encode())

    async with serving(answer) as server:
        with pytest.raises(Unavailable) as caught:
            await send(server)

    assert str(caught.value).startswith(f"127.0.0.1 port {server.port}: illegal ")
    assert "456789" not in str(caught.value)
