"""Clients that hang up, flood, stall, or speak no HTTP: each harms itself alone."""

import contextlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from agentos.http import connection, exchange
from agentos.kernel import caller
from agentos.kernel.caller import MAX_BODY_BYTES, MAX_CONNECTIONS
from agentos.kernel.ports import Entry
from agentos.kernel.wire.listener import OPERATOR_RESERVE, ConnectionLimit
from agentos.llm.providers.offline_rules import Rule
from agentos.llm.settings import OfflineSettings
from tests.gateways.served import MIB, MODEL, Served, served, until
from tests.support.rights import Notebook
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CONTENT = f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse"
EVERY_STREAM = pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, CONTENT])
SLOW = OfflineSettings(base=3600)
HANG_UPS = [trio.SocketStream.aclose, trio.SocketStream.send_eof]


def post(
    path: str = CHAT, *, stream: bool = False, text: str = "hello", length: int | None = None, close: bool = False
) -> bytes:
    said: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if path == RESPONSES:
        said = {"input": text}
    elif path == CONTENT:
        said = {"contents": [{"parts": [{"text": text}]}]}
        path = path if stream else path.replace("streamG", "g")
    body = json.dumps({"model": MODEL, "stream": stream, **said}).encode()
    headers = {"content-length": str(length or len(body)), **({"connection": "close"} if close else {})}
    return head("POST", path, **headers) + body


def text_of(path: str, said: bytes) -> list[str]:
    """The pieces of the text in a stream of events."""
    events = [json.loads(line[6:]) for line in said.split(b"\n") if line.startswith(b"data: {")]
    if path == CHAT:
        return [each["choices"][0]["delta"].get("content", "") for each in events]
    if path == RESPONSES:
        return [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    if path == MESSAGES:
        return [each["delta"]["text"] for each in events if each["type"] == "content_block_delta"]
    return [part["text"] for each in events for part in each["candidates"][0]["content"]["parts"]]


def head(method: str, path: str, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: here", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def all_of(stream: trio.SocketStream) -> bytes:
    """What comes until the other side hangs up."""
    found = b""
    with trio.fail_after(PATIENCE):
        try:
            while data := await stream.receive_some():
                found += data
        except trio.BrokenResourceError:
            pass
    return found


async def until_it_says(stream: trio.SocketStream, word: bytes) -> bytes:
    found = b""
    with trio.fail_after(PATIENCE):
        while word not in found:
            data = await stream.receive_some()
            assert data, found
            found += data
    return found


def has_answered(here: Served, number: int) -> bool:
    return len(here.ended) == number


async def answers_others(here: Served) -> None:
    async with await here.connect() as stream:
        await stream.send_all(head("GET", "/v1/models", connection="close"))
        assert (await all_of(stream)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hang_up", HANG_UPS)
async def test_a_client_that_hangs_up_leaves_the_line(
    stream: bool, hang_up: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    async with served(offline=SLOW) as here:
        async with await here.connect() as client:
            await client.send_all(post(stream=stream))
            await until(lambda: here.line.in_flight, "it is asked")
            await hang_up(client)
            await until(lambda: here.ended == ["cancelled"], "it is withdrawn")
        await until(lambda: not here.line.in_flight, "nothing is in flight")
        await until(lambda: not here.connection_limit.connections, "its connection is closed")


@pytest.mark.parametrize("behind", [b"\r\n", post(), b"x" * 20_000], ids=["a line end", "a request", "garbage"])
@pytest.mark.parametrize("hang_up", HANG_UPS)
async def test_a_client_that_sends_more_than_a_request_and_hangs_up_leaves_the_line(
    behind: bytes, hang_up: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    async with served(offline=SLOW) as here:
        async with await here.connect() as client:
            await client.send_all(post(stream=True))
            await until(lambda: here.line.in_flight, "it is asked")
            await client.send_all(behind)
            await hang_up(client)
            await until(lambda: here.ended == ["cancelled"], "it is withdrawn")
        await until(lambda: not here.connection_limit.connections, "its connection is closed")


@EVERY_STREAM
async def test_a_client_that_hangs_up_in_the_middle_of_a_stream_leaves_the_line(path: str) -> None:
    async with served(Rule(reply="one two"), offline=OfflineSettings(per_output=3)) as here:
        async with await here.connect() as client:
            await client.send_all(post(path, stream=True))
            await until_it_says(client, b"one ")
        await until(lambda: here.ended == ["cancelled"], "it is withdrawn")


async def test_the_question_of_a_client_that_hangs_up_in_the_line_is_never_asked() -> None:
    async with served(offline=SLOW, concurrency=1) as here, await here.connect() as first:
        await first.send_all(post())
        await until(lambda: here.line.in_flight, "the first is asked")
        async with await here.connect() as second:
            await second.send_all(post())
            await until(lambda: here.line.depth == 1, "the second waits")
        await until(lambda: here.line.depth == 0, "the second has left")
        assert here.line.in_flight == 1


@pytest.mark.parametrize("stream", [False, True])
@EVERY_STREAM
async def test_a_client_that_reads_nothing_holds_up_neither_the_line_nor_the_end(path: str, stream: bool) -> None:
    async with served(Rule(reply=("x" * 10_000 + " ") * 300)) as here:
        client = await here.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await client.send_all(post(path, stream=stream))
        await until(lambda: here.ended == ["answered"], "the line has answered")
        await until(lambda: not here.line.in_flight, "the line is free")
        await answers_others(here)
        here.scope.cancel()

    async with client:
        assert len(await all_of(client)) < 3_000_000, "it had all been sent: that tests nothing"


@EVERY_STREAM
async def test_a_client_that_reads_nothing_and_hangs_up_leaves_nothing_behind(path: str) -> None:
    async with served(Rule(reply=("x" * 10_000 + " ") * 300)) as here:
        async with await here.connect() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await client.send_all(post(path, stream=True))
            await until(lambda: here.ended == ["answered"], "the line has answered")
        await until(lambda: not here.connection_limit.connections, "its connection is closed")


@EVERY_STREAM
async def test_answers_that_are_not_read_are_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the next request waits until some are read."""
    monkeypatch.setattr(caller, "MAX_BODY_BYTES", 5 * MIB // 2)
    reply = "x" * MIB
    async with served(Rule(reply=reply)) as here, contextlib.AsyncExitStack() as clients:
        for answered in (1, 2, 3, 3, 3):
            client = await clients.enter_async_context(await here.connect())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await client.send_all(post(path, stream=True))
            await until(partial(has_answered, here, answered), "it is answered, or waits")
        await wait_all_tasks_blocked(0.2)
        assert len(here.asked) == 3
        here.scope.cancel()


class BrokenNotebook(Notebook):
    """A log that fails at the outcome of a call."""

    def note(self, entry: Entry) -> None:
        raise ZeroDivisionError


@EVERY_STREAM
async def test_a_bug_at_the_end_of_a_stream_ends_it_with_an_error(path: str) -> None:
    async with served(Rule(reply="one two"), notebook=BrokenNotebook()) as here, await here.connect() as client:
        await client.send_all(post(path, stream=True, close=True))
        said = await all_of(client)

    assert said.startswith(b"HTTP/1.1 200")
    assert "".join(text_of(path, said.rpartition(b"data: ")[0])) == "one two"
    assert b"a bug in the kernel: look for " in said.rpartition(b"data: ")[2]
    assert said.endswith(b"0\r\n\r\n")


@EVERY_STREAM
async def test_a_client_that_reads_slowly_gets_it_all(path: str) -> None:
    words = 5000
    text = ("x" * 1000 + " ") * words  # more than the sockets' buffers take
    async with served(Rule(reply=text)) as here, await here.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        await client.send_all(post(path, stream=True, close=True))
        await until(lambda: here.ended == ["answered"], "the line has answered")
        said = await all_of(client)

    found = text_of(path, said)
    assert "".join(found) == text
    assert len(found) < words  # what wasn't taken was joined


async def test_a_flood_of_connections_waits_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_TIMEOUT", 3.0)  # in which a slow host, too, has made all of them
    async with served() as here, trio.open_nursery() as nursery:
        flood = [await here.connect() for _ in range(3 * MAX_CONNECTIONS)]
        await until(lambda: here.connection_limit.connections == MAX_CONNECTIONS, "as many as may are in")
        await answers_others(here)  # when its turn has come: those who say nothing are sent away
        for client in flood:
            await client.aclose()
        await until(lambda: not here.connection_limit.connections, "all are gone")
        nursery.cancel_scope.cancel()


async def test_connections_that_say_nothing_hold_up_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_TIMEOUT", 10_000)
    async with served() as here:
        flood = [await here.connect() for _ in range(2 * MAX_CONNECTIONS)]
        await until(lambda: here.connection_limit.connections == MAX_CONNECTIONS, "as many as may are in")
        for client in flood[::2]:
            with contextlib.suppress(trio.BrokenResourceError):
                await client.send_all(b"GET /v1/models HTTP/1.1\r\nx: ")
        await answers_others(here)
        for client in flood:
            await client.aclose()


async def test_a_client_that_sends_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_TIMEOUT", 0.1)
    async with served() as here:
        for said in (b"", b"GET /v1/mod", head("GET", "/v1/models")[:-2], head("GET", "/v1/models")):
            async with await here.connect() as client:
                await client.send_all(said)
                assert (await all_of(client))[:12] in (b"", b"HTTP/1.1 200")


async def test_a_body_that_doesnt_come_isnt_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BODY_TIMEOUT", 0.1)
    async with served() as here, await here.connect() as client:
        await client.send_all(post()[:-1])
        said = await all_of(client)

    assert said.startswith(b"HTTP/1.1 400")
    assert b"the body did not arrive" in said


TWO_ENDS = [
    b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
    b"Transfer-Encoding: Chunked\r\nContent-Length: 0\r\n",
    b"content-length: 5\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n",
    b"content-length: 40\r\ntransfer-encoding: chunked\r\nconnection: keep-alive, upgrade\r\nupgrade: websocket\r\n",
]


@each_row(
    "begin, headers",
    [
        *((b"POST /v1/chat/completions HTTP/1.1\r\n", headers) for headers in TWO_ENDS),
        *((b"GET /v1/models HTTP/1.1\r\n", headers) for headers in TWO_ENDS),
        (b"POST /v1/chat/completions HTTP/1.0\r\n", b"transfer-encoding: chunked\r\n"),
    ],
)
async def test_a_request_with_two_ends_is_refused_with_all_behind_it(begin: bytes, headers: bytes) -> None:
    async with served() as here, await here.connect() as client:
        await client.send_all(begin + b"host: here\r\n" + headers + b"\r\n0\r\n\r\n" + head("GET", "/v1/models"))
        said = await all_of(client)

    assert said.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in said.lower()
    assert said.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused_and_its_sender_is_told(chunked: bool) -> None:
    size, piece = 20 * MIB, b"x" * MIB
    headers = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(size)}
    async with served() as here, await here.connect() as client:
        await client.send_all(head("POST", "/v1/chat/completions", connection="close", **headers))
        for _ in range(size // MIB):
            await client.send_all(b"%x\r\n%s\r\n" % (MIB, piece) if chunked else piece)
        if chunked:
            await client.send_all(b"0\r\n\r\n")
        said = await all_of(client)

    assert said.startswith(b"HTTP/1.1 413")
    assert json.loads(said.split(b"\r\n\r\n")[1])["error"]["code"] == "too_large"


async def test_a_body_of_any_length_is_announced_but_not_sent() -> None:
    async with served() as here:
        for length in ("1" * 30, "-1", "1e3", "0x10", "٣"):
            async with await here.connect() as client:
                await client.send_all(head("POST", "/v1/chat/completions", **{"content-length": length}))
                assert (await all_of(client))[:10] == b"HTTP/1.1 4"
        await answers_others(here)


async def test_bodies_are_counted_and_a_request_beyond_the_limit_waits() -> None:
    half = MAX_BODY_BYTES // 2
    async with served(max_payload=half) as here, trio.open_nursery() as nursery:
        answered = trio.Event()
        first, second, third = [await here.connect() for _ in range(3)]

        async def wait() -> None:
            await all_of(third)
            answered.set()

        for client in (first, second):
            await client.send_all(post(length=half))  # of which nothing more is to come
        await wait_all_tasks_blocked(0.1)
        await third.send_all(head("GET", "/v1/models", connection="close"))
        nursery.start_soon(wait)
        await wait_all_tasks_blocked(0.2)
        assert not answered.is_set()

        await second.aclose()
        with trio.fail_after(PATIENCE):
            await answered.wait()
        for client in (first, third):
            await client.aclose()


async def test_requests_on_one_connection_are_answered_in_order() -> None:
    async with served(Rule(match="(.*)", reply=r"\1!")) as here, await here.connect() as client:
        await client.send_all(b"".join([post(text="one"), post(text="two"), post(text="three", close=True)]))
        said = await all_of(client)

    assert said.index(b"one!") < said.index(b"two!") < said.index(b"three!")


async def test_a_connection_that_waits_is_kept_while_others_have_places() -> None:
    async with served() as here, await here.connect() as client:
        for _ in range(2):
            await client.send_all(head("GET", "/v1/models"))
            assert (await until_it_says(client, b"]}")).startswith(b"HTTP/1.1 200")
            await answers_others(here)


async def test_an_answer_counts_until_it_is_sent() -> None:
    allowance, counted = caller.Allowance(), list[int]()

    async def send(event: Any) -> None:
        counted.append(allowance.replies)

    await exchange.Exchange(cast(Any, None), cast(Any, None), send, MIB, allowance).reply(200, b"abc")

    assert counted == [3, 3, 3]
    assert allowance.replies == 0


async def test_the_rest_of_a_request_is_dropped_only_while_its_response_ends() -> None:
    taken = list[str]()

    async def receive() -> Any:
        await trio.lowlevel.checkpoint()
        taken.append("received")

    async def send(event: Any) -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        taken.append(event["type"])

    respond = connection.draining(receive, send)
    await respond({"type": "http.response.start", "status": 200, "headers": [], "trailers": False})
    await respond({"type": "http.response.body", "body": b"x", "more_body": True})
    assert taken == ["http.response.start", "http.response.body"]
    await respond({"type": "http.response.body", "body": b"", "more_body": False})
    assert "received" in taken


async def test_no_client_comes_in_when_only_the_operators_reserve_is_left() -> None:
    async with served(connection_limit=ConnectionLimit(OPERATOR_RESERVE)) as here, await here.connect() as client:
        await client.send_all(head("GET", "/v1/models"))
        assert (await all_of(client)).startswith(b"HTTP/1.1 503")
        assert here.connection_limit.connections == 0


@pytest.mark.parametrize("path", ["/v1/models", RESPONSES])
async def test_a_websocket_is_refused_so_that_codex_asks_over_http_at_once(path: str) -> None:
    wanted = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    async with served() as here, await here.connect() as client:
        await client.send_all(head("GET", path, **wanted, **{"sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="}))
        said = await all_of(client)
        assert said.startswith(b"HTTP/1.1 426")
        assert b"there is no WebSocket here" in said
        await answers_others(here)


GARBAGE = [
    b"\0" * 1000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,  # TLS
    b"AGNT" + bytes(range(32)),
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET  / HTTP/1.1\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /%ff%00 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\na: " + b"b" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 10_000,
    b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: !!!!\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000,
    b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
]


@pytest.mark.parametrize("said", GARBAGE, ids=range(len(GARBAGE)))
async def test_what_is_no_request_ends_its_own_connection(said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with served() as here:
        for _ in range(rounds(3)):
            async with await here.connect() as client:
                try:
                    await client.send_all(said)
                    await client.send_eof()
                except trio.BrokenResourceError:
                    continue
                await all_of(client)
        await answers_others(here)
        await until(lambda: not here.connection_limit.connections, "all are gone")

    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


QUESTION = post().partition(b"\r\n\r\n")[2]
CHUNK = b"%x\r\n%s\r\n" % (len(QUESTION), QUESTION)


@pytest.mark.parametrize(
    "said",
    [
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"a:b\r\n" * 8000 + b"\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\na: " + b"b" * 50_000 + b"\r\n\r\n",
        b"GET /v1/models?" + b"a" * 50_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        head("POST", CHAT, **{"transfer-encoding": "chunked"}) + CHUNK + b"0\r\n" + b"a:b\r\n" * 10_000 + b"\r\n",
    ],
    ids=["headers", "header", "target", "trailers"],
)
async def test_a_head_that_takes_long_to_parse_is_refused_also_if_it_comes_at_once(said: bytes) -> None:
    async with served() as here:
        async with await here.connect() as client:
            await client.send_all(said)
            assert not (await all_of(client)).startswith(b"HTTP/1.1 200")
        await answers_others(here)


async def test_a_head_of_12_kib_is_read() -> None:
    async with served() as here, await here.connect() as client:
        await client.send_all(head("GET", "/v1/models", cookie="c" * (12 << 10), connection="close"))
        assert (await all_of(client)).startswith(b"HTTP/1.1 200")


PIECES = st.sampled_from(
    [
        *(post(), post(stream=True), head("GET", "/v1/models"), b"\r\n", b"\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        *(
            b"transfer-encoding: chunked\r\n",
            b"content-length: 7\r\n",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
            b"GET / HTTP/1.1\r\n",
        ),
    ]
)


@given(st.lists(PIECES | st.binary(max_size=40), max_size=8), st.booleans())
@settings(max_examples=rounds(25), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
async def test_any_bytes_end_their_own_connection_alone(
    caplog: pytest.LogCaptureFixture, pieces: list[bytes], cut: bool
) -> None:
    async with served() as here:
        async with await here.connect() as client:
            try:
                for piece in pieces:
                    await client.send_all(piece)
                if not cut:
                    await client.send_eof()
                    await all_of(client)
            except trio.BrokenResourceError:
                pass
        await answers_others(here)
        await until(lambda: not here.connection_limit.connections, "all are gone")

    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def stumble(question: Any) -> None:
        raise ZeroDivisionError

    async with served(think=stumble) as here:
        for said in (*GARBAGE, post()):
            async with await here.connect() as client:
                await client.send_all(said)
        await answers_others(here)

    assert capfd.readouterr() == ("", "")


async def test_an_agents_many_large_requests_are_read_one_at_a_time() -> None:
    request = b'{"messages": [], "metadata": [' + b"1.5," * 50_000 + b"1]}"  # refused when it has been read
    threads = 0

    async def watch() -> None:
        nonlocal threads
        while True:
            await trio.lowlevel.checkpoint()
            threads = max(threads, trio.to_thread.current_default_thread_limiter().borrowed_tokens)

    async with served() as here, trio.open_nursery() as nursery:
        nursery.start_soon(watch)

        async def ask() -> None:
            async with await here.connect() as stream:
                headers = {"content-length": str(len(request)), "connection": "close"}
                await stream.send_all(head("POST", "/v1/chat/completions", **headers) + request)
                assert b" 400 " in await all_of(stream)

        async with trio.open_nursery() as clients:
            for _ in range(8):
                clients.start_soon(ask)
        nursery.cancel_scope.cancel()

    assert threads <= 1
