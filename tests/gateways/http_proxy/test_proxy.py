"""The proxy reaches exactly what rules grant, and says why it reaches nothing else."""

import contextlib
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import h11
import pytest
import trio
import trio.lowlevel
from attrs import evolve

from agentos.gateways.http_proxy import outgoing
from agentos.gateways.http_proxy.client_hello import RETRY_RANDOM
from agentos.gateways.http_proxy.proxy import MAX_SILENT
from agentos.kernel.table import Table
from agentos.kernel.wire.listener import OPERATOR_RESERVE
from tests.support.runs.rows import each_row
from tests.support.servers.dns_server import Records
from tests.support.wire import PATIENCE

from .hellos import counted, hello, real_hello, records, server_name
from .streams import receive_all
from .world import World, world

LOCAL = {"api.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}


async def echo(stream: trio.SocketStream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)
    await stream.send_eof()


async def repeat_request(stream: trio.SocketStream) -> None:
    """Answer with the request itself."""
    received = bytearray()
    while not is_whole(bytes(received)):
        data = await stream.receive_some()
        if not data:
            return
        received += data
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(received) + received)


def is_whole(request: bytes) -> bool:
    head, found, body = request.partition(b"\r\n\r\n")
    if b"chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    return bool(found) and len(body) == int(length[1] if length else 0)


async def drop(stream: trio.SocketStream) -> None:
    await receive_all(stream)


def get(url: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {url} HTTP/1.1", f"Host: {url.split('/')[2]}", *headers, "", ""]).encode()


async def test_a_tunnel_carries_bytes_and_is_recorded() -> None:
    async with world(LOCAL) as here:
        port = await here.serve(echo)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])
        async with await here.tunnel(f"api.test:{port}") as stream:
            await stream.send_all(b"hello")
            await stream.send_eof()
            assert await receive_all(stream) == b"hello"
        while not here.outcomes():
            await trio.sleep(0.01)

    intent, outcome = here.notebook.entries
    assert (intent.call, intent.about, intent.phase) == ("HTTP", f"CONNECT api.test:{port}", "intent")
    assert (outcome.about, outcome.outcome) == (f"CONNECT api.test:{port} (5 bytes sent, 5 received)", "ok")
    assert (outcome.intent, outcome.duration is not None) == (1, True)


async def test_an_observer_is_told_of_a_host_whose_bytes_no_call_has() -> None:
    told = list[str]()
    observer: Any = SimpleNamespace(miss=lambda caller, what: told.append(what))
    async with world(LOCAL) as here:
        here.caller.table = Table((), observer)
        port = await here.serve(echo)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])
        async with await here.tunnel(f"api.test:{port}"):
            assert told == ["it reached api.test by the filtered network, whose bytes no call has"]


async def test_a_refusal_says_why_and_which_rule_would_allow_it() -> None:
    async with world(LOCAL, allow=["api.test"]) as here:
        tunnel = await here.tell(b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        other_port = await here.tell(b"CONNECT evil.test:8443 HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        plain = await here.tell(get("http://evil.test/path?query=secret"))

    assert tunnel.startswith(b"HTTP/1.1 403 Forbidden by AgentOS: HTTP CONNECT evil.test:443: no rule of the test's")
    assert b'This rule would: domains = ["evil.test"]\n' in tunnel
    assert b'This rule would: domains = ["evil.test:8443"]\n' in other_port
    assert b'This rule would: domains = ["GET evil.test/path"]\n' in plain
    assert b"secret" not in plain
    assert here.dns.asked == [], "a name that is refused is not resolved"
    assert here.outcomes() == [
        "CONNECT evil.test:443: permission_denied",
        "CONNECT evil.test:8443: permission_denied",
        "GET http://evil.test/path: permission_denied",
    ]


@pytest.mark.parametrize("allow", [["*"], ["*:*"], ["*:443", "8.8.8.8:80"]])
async def test_no_wildcard_grants_a_tunnel_to_an_address(allow: list[str]) -> None:
    async with world(LOCAL, allow=allow) as here:
        refused = await here.tell(b"CONNECT 8.8.8.8:443 HTTP/1.1\r\nHost: 8.8.8.8\r\n\r\n")

    assert b"only a rule for 8.8.8.8:443 allows it" in refused
    assert here.outcomes() == ["CONNECT 8.8.8.8:443: permission_denied"]
    assert not [one for one in here.notebook.entries if one.phase == "intent"], "nothing was begun"


async def test_a_rule_with_methods_or_a_path_grants_requests_and_no_tunnel() -> None:
    async with world(LOCAL) as here:
        port = await here.serve(repeat_request)
        here.grant(allow=[f"GET api.test:{port}/open/**", f"127.0.0.1:{port}"])

        tunnel = await here.tell(f"CONNECT api.test:{port} HTTP/1.1\r\nHost: api.test\r\n\r\n".encode())
        allowed = await here.tell(get(f"http://api.test:{port}/open/x?y=1", "Connection: close"))
        path = await here.tell(get(f"http://api.test:{port}/shut"))
        method = await here.tell(get(f"http://api.test:{port}/open/x").replace(b"GET", b"PUT"))

    assert [reply.split(b" ")[1] for reply in (tunnel, allowed, path, method)] == [b"403", b"200", b"403", b"403"]
    assert b"allows no tunnel" in tunnel
    assert b"GET /open/x?y=1 HTTP/1.1\r\nHost: api.test:%d\r\n" % port in allowed
    assert here.served == [port]


async def test_a_request_is_written_anew_and_the_connection_kept_for_the_next() -> None:
    async with world(LOCAL) as here:
        port = await here.serve(repeat_request)
        here.grant(allow=[f"*:{port}", f"127.0.0.1:{port}"])
        async with await here.connect() as stream:
            replies = []
            for name in ("api", "other"):
                await stream.send_all(
                    f"POST http://{name}.test:{port}/ HTTP/1.1\r\nHost: evil.test\r\nProxy-Authorization: x\r\n"
                    "X-Mine: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".encode()
                )
                reply = b""
                while not reply.endswith(b"0\r\n\r\n"):
                    data = await stream.receive_some()
                    assert data, "the connection is kept"
                    reply += data
                replies.append(reply)

    for host, reply in zip((b"api.test", b"other.test"), replies, strict=True):
        assert b"Host: %s:%d\r\n" % (host, port) in reply
        assert b"3\r\nabc\r\n0\r\n\r\n" in reply
        assert b"evil" not in reply
        assert b"Proxy-Authorization" not in reply
    assert here.served == [port, port]


@each_row(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET https://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET http://user@api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET http://api.test\\@evil.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET http://0x7f.1/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET ftp://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"CONNECT api.test HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"CONNECT http://api.test:443/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"CONNECT api.test:99999 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"CONNECT api.test.:443 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"CONNECT user@api.test:443 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"POST http://api.test/ HTTP/1.1\r\nHost: api.test\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_no_request_of_ours_looks_like_is_answered_once_and_ends(request_: bytes) -> None:
    async with world(LOCAL, allow=["*:*"]) as here:
        reply = await here.tell(request_)

        assert reply.startswith(b"HTTP/1.1 400 Bad Request by AgentOS: "), reply
        assert reply.count(b"HTTP/1.1 ") == 1, "what follows isn't taken for another request"
        assert (here.served, here.dns.asked) == ([], [])


async def test_no_request_is_smuggled_in_the_body_of_another() -> None:
    async with world(LOCAL) as here:
        port = await here.serve(repeat_request)
        here.grant(allow=[f"POST api.test:{port}", f"127.0.0.1:{port}"])
        outer = get(f"http://api.test:{port}/").replace(b"GET", b"POST")[:-2]
        inner = get(f"http://other.test:{port}/")

        in_body = await here.tell(outer + b"Content-Length: %d\r\n\r\n" % len(inner) + inner)
        behind = await here.tell(outer + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner)
        halved = await here.tell(outer + b"Content-Length: 5\r\n\r\n" + inner)

    statuses = [re.findall(rb"HTTP/1.1 (\d+)", reply) for reply in (in_body, behind, halved)]
    assert statuses == [[b"200"], [b"200", b"403"], [b"200", b"400"]]
    assert here.served == [port] * 3


@each_row("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "[::1]", "[::ffff:127.0.0.1]"])
async def test_no_wildcard_grants_a_tunnel_to_an_address_inside(address: str) -> None:
    async with world(allow=["*:*"]) as here:
        reply = await here.tell(f"CONNECT {address}:22 HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    assert re.match(rb"HTTP/1.1 40[03] ", reply)


async def test_a_name_that_is_bound_anew_reaches_no_address_inside() -> None:
    """The first answer is an address that a rule names, the second one is not."""
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])
    async with world({"rebound.test": lambda: next(answers)}) as here:
        port = await here.serve(echo)
        await here.serve(echo, "127.0.0.2", port)
        here.grant(allow=[f"rebound.test:{port}", f"127.0.0.1:{port}"])
        async with await here.tunnel(f"rebound.test:{port}"):
            pass

        reply = await here.tell(f"CONNECT rebound.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    assert reply.startswith(b"HTTP/1.1 403 ")
    assert b"127.0.0.2 is loopback" in reply


@pytest.fixture
def tls_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port for which the proxy checks server names, as it does for 443."""
    from agentos.gateways.http_proxy import proxy

    monkeypatch.setattr(proxy, "TLS_PORT", 18443)
    return 18443


ALERT = b"\x15\3\3\0\2\2\x28"


async def open_tls(here: World, tls_port: int, received: list[bytes]) -> trio.SocketStream:
    async def keep(stream: trio.SocketStream) -> None:
        first = await stream.receive_some()
        await stream.send_all(ALERT)
        received.append(bytes(first) + await receive_all(stream))

    await here.serve(keep, port=tls_port)
    here.grant(allow=[f"api.test:{tls_port}", f"127.0.0.1:{tls_port}"])
    return await here.tunnel(f"api.test:{tls_port}")


@pytest.mark.parametrize("sizes", [[], [1] * 400, [3, 100]])
async def test_the_hello_for_the_tunnels_host_passes_unchanged(tls_port: int, sizes: list[int]) -> None:
    received: list[bytes] = []
    sent = records(hello(server_name(b"API.test")), sizes)
    async with world(LOCAL) as here, await open_tls(here, tls_port, received) as stream:
        for at in range(0, len(sent), 7):
            await stream.send_all(sent[at : at + 7])
            await trio.lowlevel.checkpoint()
        await stream.send_all(b"more")
        await stream.send_eof()
        assert await receive_all(stream) == ALERT

    assert received == [sent + b"more"]


@pytest.mark.parametrize(
    "sent",
    [
        real_hello("other.test"),
        real_hello("xapi.test"),
        records(hello(server_name(b"api.test."))),
        real_hello(None),
        b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"SSH-2.0-x\r\n",
        records(hello(server_name(b"api.test")))[:-1],
        b"",
    ],
)
async def test_no_byte_of_another_hello_reaches_the_server(tls_port: int, sent: bytes) -> None:
    received: list[bytes] = []
    async with world(LOCAL) as here, await open_tls(here, tls_port, received) as stream:
        await stream.send_all(sent)
        await stream.send_eof()

        assert await receive_all(stream) == b"\x15\x03\x03\x00\x02\x02\x31", "a TLS alert: access denied"
        await receive_all(stream)
        while not received:
            await trio.sleep(0.01)

    assert received == [b""]
    assert here.outcomes()[0].endswith(": permission_denied")


def server_hello(random: bytes) -> bytes:
    return records(b"\2" + counted(b"\3\3" + random + b"\0\x13\1\0" + counted(b""), 3))


@pytest.mark.parametrize("before", [b"", b"\x14\3\3\0\1\1", b"\x17\3\3\0\3abc"])
async def test_no_second_hello_with_another_name_reaches_the_server(tls_port: int, before: bytes) -> None:
    """A server that many sites share may ask for another ClientHello, and serve the name in that one."""
    first, second = records(hello(server_name(b"api.test"))), before + records(hello(server_name(b"other.test")))
    received: list[bytes] = []

    async def ask_again(stream: trio.SocketStream) -> None:
        received.append(bytes(await stream.receive_some()))
        await stream.send_all(server_hello(RETRY_RANDOM))
        received.append(await receive_all(stream))

    async with world(LOCAL) as here:
        await here.serve(ask_again, port=tls_port)
        here.grant(allow=[f"api.test:{tls_port}", f"127.0.0.1:{tls_port}"])
        async with await here.tunnel(f"api.test:{tls_port}") as stream:
            await stream.send_all(first + second)  # before the server asks
            assert await receive_all(stream) == server_hello(RETRY_RANDOM) + b"\x15\3\3\0\2\2\x31"
            while len(received) < 2:
                await trio.sleep(0.01)

    assert received == [first, b""]


@pytest.mark.parametrize("random", [RETRY_RANDOM, b"r" * 32])
async def test_a_handshake_goes_on_after_the_answer_of_its_server(tls_port: int, random: bytes) -> None:
    first, second = (
        records(hello(server_name(b"api.test"))),
        b"\x14\3\3\0\1\1" + records(hello(server_name(b"api.test"))),
    )
    received: list[bytes] = []

    async def answer(stream: trio.SocketStream) -> None:
        received.append(bytes(await stream.receive_some()))
        for byte in server_hello(random):
            await stream.send_all(bytes([byte]))
        received.append(await receive_all(stream))

    async with world(LOCAL) as here:
        await here.serve(answer, port=tls_port)
        here.grant(allow=[f"api.test:{tls_port}", f"127.0.0.1:{tls_port}"])
        async with await here.tunnel(f"api.test:{tls_port}") as stream:
            await stream.send_all(first)
            assert await stream.receive_some(1) == b"\x16"
            await stream.send_all(second)
            await stream.send_eof()
            assert await receive_all(stream) == server_hello(random)[1:]

    assert received == [first, second]


async def test_the_tunnel_that_has_waited_longest_for_its_hello_makes_room_for_one_more(tls_port: int) -> None:
    received: list[bytes] = []
    hello = real_hello("api.test")
    async with world(LOCAL) as here, contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(await open_tls(here, tls_port, received))
        others = [
            await stack.enter_async_context(await here.tunnel(f"api.test:{tls_port}")) for _ in range(MAX_SILENT - 1)
        ]
        await first.send_all(hello[:50])
        await stack.enter_async_context(await here.tunnel(f"api.test:{tls_port}"))

        assert (await receive_all(first))[:1] == b"\x15"
        await others[0].send_all(hello[:50])  # the others wait as before
        await others[0].send_all(hello[50:])
        await others[0].send_eof()
        await receive_all(others[0])
    assert [one for one in received if one] == [hello]


async def test_a_tunnel_is_closed_when_its_rule_is_taken_away_and_others_stay() -> None:
    async with world(LOCAL) as here:
        port = await here.serve(echo)
        address = f"127.0.0.1:{port}"
        here.grant(allow=[f"api.test:{port}", f"other.test:{port}", address])
        async with await here.tunnel(f"api.test:{port}") as kept, await here.tunnel(f"other.test:{port}") as closed:
            here.grant(allow=[f"api.test:{port}", address])

            with pytest.raises(trio.BrokenResourceError):
                assert await receive_all(closed) == b""
                raise trio.BrokenResourceError
            await kept.send_all(b"x")
            assert await kept.receive_some() == b"x"
            here.grant(allow=[f"api.test:{port}"])  # the name is still allowed, its address is not

            assert await receive_all(kept) == b""
        while len(here.outcomes()) < 2:
            await trio.sleep(0.01)

    assert [outcome.rpartition(" ")[2] for outcome in here.outcomes()] == ["permission_denied"] * 2


async def test_a_tunnel_whose_rule_goes_while_it_is_opened_is_closed() -> None:
    records = dict[str, Records]()
    async with world(records) as here:
        port = await here.serve(echo)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])

        def change_rules() -> list[str]:
            here.grant(allow=[f"127.0.0.1:{port}"])
            return ["127.0.0.1"]

        records["api.test"] = change_rules
        async with await here.connect() as stream:
            await stream.send_all(f"CONNECT api.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

            assert b" 200 " not in await receive_all(stream)
        while not here.outcomes():
            await trio.sleep(0.01)

    assert here.outcomes()[0].endswith(": permission_denied")


async def test_a_connection_that_is_not_opened_in_time_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "CONNECT_SECONDS", 0.1)
    async with world() as here:
        here.dns.silent.add("api.test")
        here.grant(allow=["api.test"])

        assert (await here.tell(b"CONNECT api.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 504 ")

    assert here.outcomes()[0].endswith(": timeout")


async def test_a_client_that_gives_up_while_its_tunnel_is_opened_holds_nothing() -> None:
    async with world() as here:
        here.dns.silent.add("api.test")
        here.grant(allow=["api.test"])
        async with await here.connect() as stream:
            await stream.send_all(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
            while not here.dns.asked:
                await trio.sleep(0.01)
        while not here.outcomes():
            await trio.sleep(0.01)

        assert here.outcomes() == ["CONNECT api.test:443: cancelled"]


@pytest.mark.parametrize("body", [b"", b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000])
async def test_a_client_that_gives_up_while_its_request_is_connected_holds_its_place_for_seconds(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "HALF_CLOSED_SECONDS", 0.1)
    monkeypatch.setattr(outgoing, "CONNECT_SECONDS", 10 * PATIENCE)
    async with world() as here:
        here.dns.silent.add("api.test")
        here.grant(allow=["api.test"])
        async with await here.connect() as stream:
            await stream.send_all(b"POST http://api.test/ HTTP/1.1\r\nHost: api.test\r\n" + (body or b"\r\n"))
            while not here.dns.asked:
                await trio.sleep(0.01)
        with trio.fail_after(PATIENCE):
            while not here.outcomes():
                await trio.sleep(0.01)

        assert here.outcomes() == ["POST http://api.test/: cancelled"]


async def test_a_client_that_has_only_ended_its_request_gets_the_response_of_a_slow_connection() -> None:
    async with world(LOCAL) as here:

        async def answer(stream: trio.SocketStream) -> None:
            await stream.receive_some(4096)
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        port = await here.serve(answer)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])
        here.dns.silent.add("api.test")
        async with await here.connect() as stream:
            await stream.send_all(b"GET http://api.test:%d/ HTTP/1.1\r\nHost: x\r\n\r\n" % port)
            await stream.send_eof()
            while not here.dns.asked:
                await trio.sleep(0.01)
            here.dns.silent.clear()

            assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 200 ")


async def test_a_server_that_is_down_or_unknown_is_a_bad_gateway() -> None:
    async with world(LOCAL) as here:
        port = await here.serve(drop)
        here.grant(allow=["*:*", "127.0.0.1:1"])

        down = await here.tell(b"CONNECT api.test:1 HTTP/1.1\r\nHost: x\r\n\r\n")
        unknown = await here.tell(f"CONNECT unknown.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    assert down.startswith(b"HTTP/1.1 502 Bad Gateway by AgentOS: ")
    assert unknown.startswith(b"HTTP/1.1 502 Bad Gateway by AgentOS: ")


@each_row(
    "response",
    [
        b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 9000,
    ],
)  # fmt: skip
async def test_a_malformed_response_is_a_bad_gateway(response: bytes) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(response)

    async with world(LOCAL) as here:
        port = await here.serve(answer)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])

        assert (await here.tell(get(f"http://api.test:{port}/"))).startswith(b"HTTP/1.1 502 ")


async def test_a_client_that_waits_to_send_its_body_is_told_to_before_a_response_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer_at_once(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno")
        await stream.receive_some()

    async with world(LOCAL) as here:
        port = await here.serve(answer_at_once)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])
        asking = "Expect: 100-continue\r\nContent-Length: 3"
        for _ in range(20):  # which of the two comes first was a matter of chance
            async with await here.connect() as stream:
                await stream.send_all(get(f"http://api.test:{port}/", asking).replace(b"GET", b"POST"))
                said = await receive_all(stream)
            assert said == b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno"

    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_a_server_that_says_nothing_is_named_so() -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async with world(LOCAL) as here:
        port = await here.serve(hang_up)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])

        assert b"the server ended the connection without a response" in await here.tell(get(f"http://api.test:{port}/"))


async def test_interim_responses_leave_turns_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, events, next_event = 0, Counter[int](), h11.Connection.next_event

    def count(connection: h11.Connection) -> object:
        events[turn] += 1
        return next_event(connection)

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(
            b"HTTP/1.1 103 Early Hints\r\n\r\n" * 500 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        )

    async with world(LOCAL) as here:
        port = await here.serve(answer)
        here.grant(allow=[f"127.0.0.1:{port}"])
        monkeypatch.setattr(h11.Connection, "next_event", count)

        async def take_turns() -> None:
            nonlocal turn
            while True:
                await trio.lowlevel.checkpoint()
                turn += 1

        here.servers.start_soon(take_turns)
        assert (await here.tell(get(f"http://127.0.0.1:{port}/", "Connection: close"))).startswith(b"HTTP/1.1 200 ")

    assert events.total() > 500
    assert max(events.values()) < 10


async def test_a_response_whose_length_and_chunks_differ_has_one_length() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n")
        await stream.send_all(b"5\r\nhello\r\n0\r\n\r\n")

    async with world(LOCAL) as here:
        port = await here.serve(answer)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])
        reply = await here.tell(get(f"http://api.test:{port}/", "Connection: close"))

    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"content-length" not in head.lower()
    assert b"hello" in body


async def test_a_slow_head_ends_its_connection_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentos.gateways.http_proxy import incoming

    monkeypatch.setattr(incoming, "HEAD_SECONDS", 0.3)
    async with world(LOCAL) as here:
        port = await here.serve(echo)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])
        async with await here.connect() as slow, await here.tunnel(f"api.test:{port}") as other:
            await slow.send_all(b"GET http://api.test/")
            assert (await receive_all(slow)).startswith(b"HTTP/1.1 504 ")
            await other.send_all(b"x")
            assert await other.receive_some() == b"x"


async def test_more_connections_than_its_share_wait_for_each_other() -> None:
    from agentos.gateways.http_proxy.proxy import MAX_CONNECTIONS

    async with world(LOCAL, allow=["*:*"]) as here:
        silent = [await here.connect() for _ in range(MAX_CONNECTIONS)]
        while here.limit.connections < MAX_CONNECTIONS:
            await trio.sleep(0.01)
        async with await here.connect() as waiting:
            await waiting.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with trio.move_on_after(0.1) as scope:
                await waiting.receive_some()
            assert scope.cancelled_caught
            for each in silent:
                await each.aclose()

            assert (await waiting.receive_some()).startswith(b"HTTP/1.1 400 ")


async def test_connections_count_for_the_agents_family_and_refused_ones_do_not() -> None:
    async with world(LOCAL, allow=["*:*"]) as here:
        here.limit.capacity = OPERATOR_RESERVE + 6
        silent = []
        while here.limit.describe_full(here.caller) is None:
            silent.append(await here.connect())
            with trio.fail_after(PATIENCE):
                while here.limit.connections < len(silent):
                    await trio.sleep(0.01)

        assert len(silent) == 3
        assert (await here.tell(get("http://api.test/"))).startswith(b"HTTP/1.1 503 ")
        assert here.limit.connections == 3
        assert here.limit.describe_full(evolve(here.caller, family="another")) is None
        for each in silent:
            await each.aclose()


async def test_a_kernel_without_room_says_so_and_the_end_leaves_nothing() -> None:
    async with world(LOCAL, allow=["*:*"]) as here:
        here.limit.capacity = 0

        assert (await here.tell(get("http://api.test/"))).startswith(b"HTTP/1.1 503 ")
        assert len(here.authorizer.observers) == 1
    assert (here.limit.connections, here.authorizer.observers) == (0, [])


async def test_nothing_is_sent_if_the_audit_log_is_full() -> None:
    async with world(LOCAL) as here:
        port = await here.serve(echo)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])
        here.notebook.full = True

        assert b"502" in (await here.tell(f"CONNECT api.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()))[:20]
    assert (here.served, here.dns.asked) == ([], [])


async def test_requests_and_all_bytes_count_towards_quotas_which_end_a_tunnel() -> None:
    async with world(LOCAL) as here:
        port = await here.serve(echo)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])
        async with await here.tunnel(f"api.test:{port}") as small:
            await small.send_all(b"hello")
            await small.send_eof()
            await receive_all(small)
        while not here.outcomes():
            await trio.sleep(0.01)
        assert (here.quotas.requests, here.quotas.bytes) == (1, 10)

        here.quotas.most_bytes = 1000
        async with await here.tunnel(f"api.test:{port}") as large:
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    await large.send_all(b"x" * 65536)
                    await large.receive_some()
        refused = await here.tell(f"CONNECT api.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    assert here.outcomes()[1].endswith(": quota_exceeded")
    assert refused.startswith(b"HTTP/1.1 429 ")


async def test_a_server_that_does_not_answer_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentos.gateways.http_proxy import forward

    monkeypatch.setattr(forward, "IDLE_SECONDS", 0.3)
    async with world(LOCAL) as here:
        port = await here.serve(drop)
        here.grant(allow=[f"api.test:{port}", f"127.0.0.1:{port}"])

        assert (await here.tell(get(f"http://api.test:{port}/"))).startswith(b"HTTP/1.1 504 ")
    assert here.outcomes()[0].endswith(": timeout")
