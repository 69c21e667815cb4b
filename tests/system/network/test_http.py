"""HTTP through a running kernel: what an agent gets, and what it is refused."""

import base64
import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from agentos.services.http.client import MAX_REQUESTS
from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel, running, until
from tests.support.servers.http_server import (
    Asked,
    HttpServer,
    http_server,
    make_authority,
    make_server_context,
    response,
)
from tests.support.wire import HTTP, Wire
from tests.system.agents import as_agent, up

SLEEP = ["sleep", "1000"]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with http_server() as started:
        yield started


@pytest.fixture(scope="module")
def pair(kernel: Kernel, server: HttpServer) -> Iterator[tuple[AgentOSClient, AgentOSClient, int]]:
    """The operator, an agent that may send requests to the server, and its id."""
    with kernel.client() as operator:
        number = up(operator.spawn("subject", command=SLEEP))["id"]
        with as_agent(kernel, number) as subject:
            yield operator, subject, number


def allow(operator: AgentOSClient, number: int, *domains: str, **more: Any) -> None:
    up(operator.set_permissions({"level": "sandboxed", "allow": {"domains": list(domains)}, **more}, agent_id=number))


def ask(operator: AgentOSClient, number: int, *domains: str) -> None:
    up(operator.set_permissions({"level": "sandboxed", "ask": {"domains": list(domains)}}, agent_id=number))


@pytest.fixture
def subject(pair: tuple[AgentOSClient, AgentOSClient, int], server: HttpServer) -> AgentOSClient:
    """The agent, whatever the test before has let it do."""
    operator, agent, number = pair
    allow(operator, number, f"127.0.0.1:{server.port}")
    return agent


def test_a_request_arrives_as_it_was_given_and_its_response_comes_back(
    subject: AgentOSClient, server: HttpServer
) -> None:
    server.answers["/made"] = response(b'{"id": 7}', 201, Content_Type="application/json", Set_Cookie="a=b")

    reply = up(subject.http(server.url("/made?of=%20clay"), "POST", {"X-Two": "words here"}, {"hands": [2]}))

    asked = server.asked[-1]
    assert (asked.method, asked.target, asked.body) == ("POST", "/made?of=%20clay", b'{"hands": [2]}')
    assert asked.header("host") == f"127.0.0.1:{server.port}"
    assert asked.header("x-two") == "words here"
    assert asked.header("content-type") == "application/json"
    assert asked.header("accept-encoding") == "gzip, deflate"
    assert {name: reply[name] for name in ("status_code", "body", "encoding", "truncated", "url")} == {
        "status_code": 201,
        "body": '{"id": 7}',
        "encoding": "utf-8",
        "truncated": False,
        "url": server.url("/made?of=%20clay"),
    }
    assert reply["headers"]["set-cookie"] == "a=b"
    assert reply["elapsed_ms"] > 0
    up(subject.http(server.url("/made")))
    assert server.asked[-1].header("cookie") is None


def test_text_and_bytes_are_sent_as_they_are(subject: AgentOSClient, server: HttpServer) -> None:
    server.answers["/put"] = response(b"")

    for body in ("a=1&b=ü", b"\x00\xff", ""):
        up(subject.http(server.url("/put"), "PUT", body=body))
        assert server.asked[-1].body == (body.encode() if isinstance(body, str) else body)
        assert server.asked[-1].header("content-type") is None


def test_what_is_not_utf8_comes_in_base64(subject: AgentOSClient, server: HttpServer) -> None:
    server.answers["/latin"] = response("grün".encode("latin-1"))

    reply = up(subject.http(server.url("/latin")))

    assert reply["encoding"] == "base64"
    assert base64.b64decode(reply["body"]) == "grün".encode("latin-1")


def test_a_compressed_body_is_inflated_and_cut_at_the_limit(
    kernel: Kernel, subject: AgentOSClient, server: HttpServer
) -> None:
    server.answers["/small"] = response(gzip.compress(b"small"), Content_Encoding="gzip")
    server.answers["/bomb"] = response(gzip.compress(bytes(1 << 28), 1), Content_Encoding="gzip")

    small = up(subject.http(server.url("/small")))
    assert (small["body"], small["truncated"], "content-encoding" in small["headers"]) == ("small", False, False)
    before = kernel.peak_rss
    bomb = up(subject.http(server.url("/bomb")))

    assert (bomb["truncated"], len(base64.b64decode(bomb["body"]))) == (True, 8 << 20)
    assert kernel.peak_rss - before < 100 << 20


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"url": "http://user:pw@host/"}, "url: a URL with a user name or a password before its host is not accepted"),
        ({"url": "http://host\\@evil/"}, "url: a URL has no spaces, no control characters and no backslashes in it"),
        ({"url": "http://2130706433/"}, "url: a host that ends in a number is an IPv4 address of four decimal numbers"),
        ({"url": "file:///etc/passwd"}, "url: a URL begins with http:// or https://"),
        ({"method": "get"}, "method: expected a word in upper case such as GET or POST, and not 'get'"),
        ({"method": "CONNECT"}, "method: "),
        ({"method": "GET /x HTTP/1.1\r\nA: b"}, "method: "),
        ({"headers": {"a": "b\r\nc: d"}}, "headers.a: expected printable ASCII"),
        ({"headers": {"a": "b\nc"}}, "headers.a: expected printable ASCII"),
        ({"headers": {"a": "ü"}}, "headers.a: expected printable ASCII"),
        ({"headers": {"a b": "c"}}, "headers: expected a header's name, got 'a b'"),
        ({"headers": {"a:": "c"}}, "headers: expected a header's name"),
        ({"headers": {"": "c"}}, "headers: expected a header's name"),
        ({"headers": {"Host": "other"}}, "headers.Host: the kernel sets this header itself: leave it out"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "headers.Transfer-Encoding: the kernel sets this header"),
        ({"headers": {"content-length": "3"}}, "headers.content-length: the kernel sets this header itself"),
        ({"headers": {"A": "1", "a": "2"}}, "headers.a: given twice: join the values with a comma"),
        ({"headers": {f"a{n}": "1" for n in range(101)}}, "headers: expected at most 100, of 32 KiB in all"),
        ({"body": "$", "encoding": "base64"}, "body: expected base64, with padding and without line breaks"),
        ({"body": {"a": 1}, "encoding": "base64"}, "body: expected base64 as text, because of encoding"),
        ({"timeout": 0}, "timeout: expected above 0, at most 3600 seconds"),
        ({"max_redirects": 21}, "max_redirects: expected a whole number from 0 to 20"),
        ({"stream": True}, "stream: needs protocol version 2"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_sent(
    subject: AgentOSClient, server: HttpServer, fields: dict[str, Any], error: str
) -> None:
    count = len(server.asked)

    reply = subject.request(Op.HTTP, {"url": server.url("/x"), **fields})

    assert reply["code"] == "bad_request"
    assert reply["error"].startswith(error)
    assert len(server.asked) == count


def test_without_a_rule_nothing_is_sent_and_the_rule_is_named(
    pair: tuple[AgentOSClient, AgentOSClient, int], server: HttpServer
) -> None:
    operator, subject, number = pair
    before = server.connections
    allow(operator, number, f"GET 127.0.0.1:{server.port}/open/**")

    for url, method in ((server.url("/shut"), "GET"), (server.url("/open/x"), "POST"), ("http://127.0.0.2/", "GET")):
        refused = subject.http(url, method)
        assert refused["code"] == "permission_denied"
        assert refused["error"].startswith(f"HTTP {method} {url}: no rule of SET_PERMS")

    assert server.connections == before
    allow(operator, number, f"127.0.0.1:{server.port}")


def test_an_address_that_was_not_granted_by_itself_is_refused_although_its_name_is(
    pair: tuple[AgentOSClient, AgentOSClient, int], server: HttpServer
) -> None:
    operator, subject, number = pair
    before = server.connections
    allow(operator, number, f"localhost:{server.port}")

    refused = subject.http(server.url("/", host="localhost"))

    assert refused["code"] == "permission_denied"
    assert "loopback" in refused["error"]
    assert server.connections == before
    allow(operator, number, f"127.0.0.1:{server.port}")


def test_a_redirect_is_followed_only_where_the_next_request_is_allowed(
    pair: tuple[AgentOSClient, AgentOSClient, int], server: HttpServer
) -> None:
    _, subject, _ = pair
    server.answers["/there"] = response(b"arrived")
    server.answers["/moved"] = response(b"", 302, Location="/there?q=1#part")
    server.answers["/kept"] = response(b"", 307, Location="/there")
    server.answers["/away"] = response(b"", 302, Location="http://169.254.169.254/latest/meta-data/")
    server.answers["/odd"] = response(b"", 302, Location="http://[::1%25lo]/")
    server.answers["/round"] = response(b"", 302, Location="/round")

    reply = up(subject.http(server.url("/moved"), "POST", {"Content-Type": "text/plain", "A": "b"}, "data"))
    assert (reply["body"], reply["url"]) == ("arrived", server.url("/there?q=1"))
    asked = server.asked[-1]
    assert (asked.method, asked.body, asked.header("content-type"), asked.header("a")) == ("GET", b"", None, "b")
    up(subject.http(server.url("/kept"), "POST", body="data"))
    assert (server.asked[-1].method, server.asked[-1].body) == ("POST", b"data")
    for path in ("/away", "/odd"):
        reply = up(subject.http(server.url(path)))
        assert (reply["status_code"], reply["url"]) == (302, server.url(path))
    assert up(subject.http(server.url("/moved"), max_redirects=0))["headers"]["location"] == "/there?q=1#part"
    count = len(server.asked)
    assert up(subject.http(server.url("/round"), max_redirects=3))["status_code"] == 302
    assert len(server.asked) - count == 4


def test_a_redirect_to_another_host_does_not_take_the_callers_headers_along(
    pair: tuple[AgentOSClient, AgentOSClient, int], server: HttpServer
) -> None:
    operator, subject, number = pair
    with http_server({"/": response(b"other")}) as other:
        allow(operator, number, f"127.0.0.1:{server.port}", f"127.0.0.1:{other.port}")
        server.answers["/off"] = response(b"", 302, Location=other.url())

        reply = up(
            subject.http(server.url("/off"), headers={"Authorization": "Bearer x", "X-Key": "y", "Accept": "text/html"})
        )

        assert reply["url"] == other.url()
        names = {name.lower() for name, _ in other.asked[0].headers}
        assert names == {"host", "accept", "user-agent", "accept-encoding"}
    allow(operator, number, f"127.0.0.1:{server.port}")


def test_connections_are_used_again_by_the_same_agent_and_by_no_other(
    kernel: Kernel, pair: tuple[AgentOSClient, AgentOSClient, int], server: HttpServer
) -> None:
    operator, subject, number = pair
    server.answers["/k"] = response(b"k")
    allow(operator, number, f"127.0.0.1:{server.port}")

    for _ in range(3):
        up(subject.http(server.url("/k")))
    mine = server.asked[-1].connection
    assert [asked.connection for asked in server.asked[-3:]] == [mine] * 3
    second = up(operator.spawn("second", command=SLEEP))["id"]
    with as_agent(kernel, second) as other:
        allow(operator, second, f"127.0.0.1:{server.port}")  # a change of rules closes all connections
        for client in (subject, other, subject, other):
            up(client.http(server.url("/k")))
    first, other_one, again, other_again = [asked.connection for asked in server.asked[-4:]]
    assert first == again != mine
    assert other_one == other_again != first
    operator.kill("second", grace=0)
    until(lambda: server.open == 1, "the connections of an agent that has ended are closed")


def test_a_response_is_streamed_as_it_arrives(kernel: Kernel, pair: Any, server: HttpServer) -> None:
    go_on = threading.Event()

    async def slowly(stream: trio.abc.Stream, asked: Asked) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfir\xc3\r\n")
        await trio.to_thread.run_sync(go_on.wait)
        await stream.send_all(b"2\r\n\xa4\xff\r\n0\r\n\r\n")

    server.answers["/slow"] = slowly
    with kernel.connect_as(pair[2]) as wire:
        wire.hello()
        wire.send(HTTP, {"url": server.url("/slow"), "stream": True}, 5)

        head, first = wire.receive().json, wire.receive().json
        assert (head["status_code"], head["body"], first["body"]) == (200, "", "fir")
        go_on.set()
        rest, reply = wire.receive().json, wire.receive()
        assert (rest["encoding"], base64.b64decode(rest["body"])) == ("base64", b"\xc3\xa4\xff")
        assert (reply.op, reply.json["status_code"], reply.json["body"]) == (HTTP, 200, "")


async def endlessly(stream: trio.abc.Stream, asked: Asked) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
    await stream.receive_some(1)  # the end of the connection: no further request comes
    raise trio.ClosedResourceError


def begin_endless(wire: Wire, server: HttpServer) -> None:
    server.answers["/endless"] = endlessly
    wire.hello()
    wire.send(HTTP, {"url": server.url("/endless"), "stream": True, "timeout": 600}, 5)
    assert [wire.receive().json["body"] for _ in range(2)] == ["", "x"]


def test_a_stream_ends_when_its_rule_is_taken_away(kernel: Kernel, pair: Any, server: HttpServer) -> None:
    operator, _, number = pair
    with kernel.connect_as(number) as wire:
        begin_endless(wire, server)
        allow(operator, number, "example.com", f"127.0.0.1:{server.port}")
        assert wire.is_silent()

        allow(operator, number, "example.com")

        reply = wire.receive().json
        assert reply["code"] == "permission_denied"
        assert "no rule of SET_PERMS" in reply["error"]
        until(lambda: server.open == 0, "the connection is closed")
    allow(operator, number, f"127.0.0.1:{server.port}")


def test_a_stream_ends_when_its_rule_begins_to_ask(kernel: Kernel, pair: Any, server: HttpServer) -> None:
    operator, _, number = pair
    with kernel.connect_as(number) as wire:
        begin_endless(wire, server)

        ask(operator, number, f"127.0.0.1:{server.port}")

        assert wire.receive().json["code"] == "approval_required"
    allow(operator, number, f"127.0.0.1:{server.port}")


def test_an_approved_stream_goes_on_until_another_rule_asks(kernel: Kernel, pair: Any, server: HttpServer) -> None:
    operator, _, number = pair
    domain = f"127.0.0.1:{server.port}"
    ask(operator, number, domain)
    server.answers["/endless"] = endlessly
    with kernel.connect_as(number) as wire:
        wire.hello()
        wire.send(HTTP, {"url": server.url("/endless"), "stream": True, "timeout": 600}, 5)
        until(lambda: up(operator.approvals())["pending"], "it waits for a person")
        [waiting] = up(operator.approvals())["pending"]
        up(operator.decide(waiting["id"], True))
        assert [wire.receive().json["body"] for _ in range(2)] == ["", "x"]
        ask(operator, number, "example.com", domain)
        assert wire.is_silent()

        ask(operator, number, f"GET {domain}")

        assert wire.receive().json["code"] == "approval_required"
    allow(operator, number, domain)


def test_a_caller_has_so_many_requests_under_way_and_no_other_waits_for_them(
    kernel: Kernel, pair: Any, server: HttpServer
) -> None:
    server.answers["/endless"], server.answers["/quick"] = endlessly, response(b"quick")
    before = server.open
    with kernel.connect_as(pair[2]) as wire, kernel.client() as guest:
        wire.hello()
        for number in range(1, MAX_REQUESTS + 1):
            wire.send(HTTP, {"url": server.url("/endless"), "timeout": 600}, number)
        until(lambda: server.open - before >= MAX_REQUESTS - 1, "all of them are under way")

        reply = wire.call(HTTP, {"url": server.url("/quick"), "timeout": 0.3}, 100)
        assert reply["code"] == "timeout"
        up(guest.hello(permissions={"allow": {"domains": [f"127.0.0.1:{server.port}"]}}))
        assert up(guest.http(server.url("/quick")))["body"] == "quick"
        wire.call(Op.CANCEL, {"id": 1}, 101)
        assert wire.receive().id == 1
        assert up(wire.call(HTTP, {"url": server.url("/quick")}, 102))["body"] == "quick"


@pytest.mark.parametrize("way", ["cancel", "hang up", "timeout"])
def test_a_request_that_is_withdrawn_closes_its_connection(
    kernel: Kernel, pair: Any, server: HttpServer, way: str
) -> None:
    allow(pair[0], pair[2], f"127.0.0.1:{server.port}")  # closes what is open
    until(lambda: server.open == 0, "no connection is left")
    with kernel.connect_as(pair[2]) as wire:
        if way == "timeout":
            server.answers["/endless"] = endlessly
            wire.hello()
            assert wire.call(HTTP, {"url": server.url("/endless"), "timeout": 0.2}, 5)["code"] == "timeout"
        else:
            begin_endless(wire, server)
        if way == "cancel":
            wire.send(Op.CANCEL, {"id": 5}, 6)
    until(lambda: server.open == 0, "the connection is closed")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\n\r\n", "more than 64 KiB of headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"A:\r\n" * 1000 + b"\r\n", "more than 200 headers"),
        (b"HTTP/1.1 102 Wait\r\n\r\n" * 5000, "more than 200 headers"),
        (b"nonsense\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "without a pending proposal"),
        (response(b"abc", Content_Encoding="gzip"), "its compressed body is broken"),
        (
            response(gzip.compress(b"abc" * 99, mtime=0)[:-9], Content_Encoding="gzip"),
            "its compressed body is incomplete",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "illegal chunk header"),
        (b"", "Server disconnected without sending a response"),
    ],
    ids=["size", "number", "interim", "nonsense", "switch", "gzip", "incomplete", "chunk", "nothing"],
)
def test_a_response_that_breaks_a_limit_or_http_is_unavailable(
    subject: AgentOSClient, server: HttpServer, said: bytes, why: str
) -> None:
    async def say_and_leave(stream: trio.abc.Stream, asked: Asked) -> None:
        await stream.send_all(said)
        raise trio.ClosedResourceError

    server.answers["/broken"] = say_and_leave

    reply = subject.http(server.url("/broken"))

    assert reply["code"] == "unavailable"
    assert reply["error"].startswith(f"127.0.0.1 port {server.port}: ")
    assert why.lower() in reply["error"].lower()


def test_responses_without_a_body_and_interim_responses_are_understood(
    subject: AgentOSClient, server: HttpServer
) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    server.answers["/head"] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    server.answers["/none"] = interim + b"HTTP/1.1 204 No Content\r\n\r\n"
    server.answers["/same"] = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"
    server.answers["/old"] = interim + response(b"old")

    assert up(subject.http(server.url("/head"), "HEAD"))["headers"]["content-length"] == "1000"
    assert up(subject.http(server.url("/none")))["status_code"] == 204
    assert up(subject.http(server.url("/same")))["status_code"] == 304
    assert up(subject.http(server.url("/old")))["body"] == "old"


def test_a_server_that_sends_byte_by_byte_meets_the_timeout(subject: AgentOSClient, server: HttpServer) -> None:
    async def trickle(stream: trio.abc.Stream, asked: Asked) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000:
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.05)

    server.answers["/loris"] = trickle

    reply = subject.http(server.url("/loris"), timeout=0.5)

    assert reply["code"] == "timeout"
    assert reply["error"] == "127.0.0.1 hasn't answered within the 0.5 s that timeout names"


def test_a_server_that_does_not_listen_is_unavailable(pair: Any) -> None:
    operator, subject, number = pair
    with http_server() as gone:
        url = gone.url()
    allow(operator, number, url.removeprefix("http://").removesuffix("/"))

    reply = subject.http(url)

    assert reply["code"] == "unavailable"
    assert "refused" in reply["error"].lower()


def test_explain_judges_an_address_at_once_and_says_that_those_of_a_name_come_later(pair: Any) -> None:
    operator, subject, number = pair
    allow(operator, number, "*", "GET 127.0.0.2:81/**")

    told = up(operator.explain("subject", "HTTP", {"url": "http://127.0.0.1/"}))
    assert told["decision"] == "deny"
    assert told["reason"].endswith("127.0.0.1 is loopback: only a rule for 127.0.0.1:80 allows it")
    assert subject.http("http://127.0.0.1/")["error"] == told["reason"]
    assert up(operator.explain("subject", "HTTP", {"url": "http://127.0.0.2:81/x"}))["decision"] == "allow"
    told = up(operator.explain("subject", "HTTP", {"url": "http://localhost/"}))
    assert told["decision"] == "allow"
    assert told["reason"].endswith("; the addresses of this name are judged when it connects")
    told = up(operator.explain("subject", "HTTP", {"method": "CONNECT", "url": "192.0.2.1:443"}))
    assert told["decision"] == "deny"
    assert told["reason"].endswith(": only a rule for 192.0.2.1:443 allows it")


def test_explain_resolves_and_sends_nothing(pair: Any, server: HttpServer) -> None:
    operator, _, number = pair
    before = server.connections
    allow(operator, number, f"GET 127.0.0.1:{server.port}/**")

    told = up(operator.explain("subject", "HTTP", {"url": server.url("/x?secret=1")}))
    assert (told["decision"], told["reason"].split(": ")[0]) == ("allow", f"HTTP GET {server.url('/x')}")
    told = up(operator.explain("subject", "HTTP", {"url": server.url("/x"), "method": "DELETE"}))
    assert told["decision"] == "deny"

    assert server.connections == before


def test_the_audit_log_has_method_url_without_query_status_and_size(pair: Any, server: HttpServer) -> None:
    operator, subject, number = pair
    allow(operator, number, f"127.0.0.1:{server.port}")
    server.answers["/to"] = response(b"12345")
    server.answers["/from"] = response(b"", 302, Location="/to?secret=2")

    up(subject.http(server.url("/from?secret=1")))
    up(subject.http(server.url("/to?secret=1"), "POST", body="secret"))

    def outcomes() -> list[dict[str, Any]]:
        logged = operator.get_audit_log(category="network", agent_id=number, limit=1000)["entries"]
        return [entry for entry in logged if entry["phase"] == "outcome"]

    until(lambda: outcomes()[-1]["about"].startswith("POST"), "the last entry is written")
    entries = outcomes()
    assert [entry["about"] for entry in entries[-2:]] == [
        f"GET {server.url('/from')} (200, 5 bytes, from GET {server.url('/to')})",
        f"POST {server.url('/to')} (200, 5 bytes)",
    ]
    assert entries[-1]["intent"] is not None
    assert entries[-2].get("intent") is None
    assert "secret" not in json.dumps(entries)


@pytest.mark.usefixtures("kernels")
def test_certificates_are_checked_against_the_configured_authority(kernel: Kernel, tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    good = make_server_context(tmp_path, "IP:127.0.0.1")
    bad = make_server_context(tmp_path, "DNS:example.com")
    page = {"/": response(b"over tls")}
    with http_server(page, good) as right, http_server(page, bad) as wrong:
        domains = [f"127.0.0.1:{each.port}" for each in (right, wrong)]
        rules = {"allow": {"domains": domains}}
        with running(f'[http]\nca_file = "{authority}"\n') as secured, secured.client() as client:
            up(client.hello(permissions=rules))
            assert up(client.http(right.url()))["body"] == "over tls"
            refused = client.http(wrong.url())
            assert refused["code"] == "unavailable"
            assert "TLS: its certificate isn't valid: IP address mismatch" in refused["error"]
        with kernel.client() as client:
            up(client.hello(permissions=rules))
            assert "certificate isn't valid" in client.http(right.url())["error"]
