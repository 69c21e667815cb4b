"""Servers at a URL: real ones by the SDK, and hostile ones; all requests go through the kernel's HTTP client."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, cast

import pytest
import trio

from agentos.mcp.session import Session
from agentos.mcp.settings import ServerSettings
from agentos.permissions.patterns.domains import parse_domain_pattern
from agentos.services.http.client import Client
from agentos.services.http.destination import Destination, parse_url
from agentos.services.http.egress import Egress
from agentos.services.http.request import Hop, Permit
from agentos.services.http.secrets import Secrets, SecretSettings
from agentos_sdk.errors import CallError, PermissionDenied
from tests.support.clients import mcp, mcpserver
from tests.support.servers.http_server import Asked, HttpServer, response
from tests.support.servers.mcp_http import mcp_http_server
from tests.support.wire import PATIENCE

TOKEN = "t0ken-0123456789"
Mode = Literal["auto", "legacy"]


def make_server() -> "mcpserver.MCPServer":
    from mcp.server.mcpserver import Context  # the SDK looks up what the annotation of a tool means

    server = mcpserver.MCPServer("notes")

    @server.tool()
    async def add(text: str) -> str:
        """Add a note."""
        return f"added {text}"

    @server.tool()
    async def slow(ctx: Context) -> str:
        """Reports progress, then answers."""
        await ctx.report_progress(1, 2, "half")
        return "done"

    @server.tool()
    async def long() -> str:
        """Answers with 300 KiB."""
        return "x" * (300 << 10)

    return server


def permit_for(port: int, *secrets: SecretSettings) -> Permit:
    """A permit for one port of loopback, with secrets of the value :data:`TOKEN`."""
    held = Secrets()
    held.replace(secrets, {each.name: TOKEN for each in secrets})
    names = [each.name for each in secrets]

    def find_refusal(destination: Destination) -> CallError | None:
        if (destination.host, destination.port) == ("127.0.0.1", port):
            return None
        return PermissionDenied(f"HTTP {destination}: no rule of the server's allows it")

    def follow(method: str, url: str) -> Hop | None:
        hop = Hop(*parse_url(url, method))
        return hop if find_refusal(hop.destination) is None else None

    return Permit(
        lambda destination: lambda address, port: None,
        follow,
        find_refusal,
        lambda to: held.headers_for(names, to),
        held.redactor,
    )


@asynccontextmanager
async def connected(url: str, permit: Permit, mode: Mode = "auto") -> AsyncIterator["mcp.Client"]:
    from agentos.mcp.remote import RemoteTransport

    client = Client(Egress())
    try:
        with trio.fail_after(PATIENCE):
            transport = RemoteTransport(url, client, 7, permit)
            async with mcp.Client(transport.connect(), mode=mode) as session:
                yield session
    finally:
        client.forget(7)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_of_a_server_at_a_url_are_listed_and_called(mode: Mode) -> None:
    with mcp_http_server(make_server()) as server:
        async with connected(server.url, permit_for(server.port), mode) as session:
            names = [tool.name for tool in (await session.list_tools()).tools]
            result = await session.call_tool("add", {"text": "milk"})
            progressed = await session.call_tool("slow", {})

    assert names == ["add", "slow", "long"]
    assert result.content[0].text == "added milk"  # type: ignore[union-attr]
    assert progressed.content[0].text == "done"  # type: ignore[union-attr]


async def test_a_session_is_ready_as_soon_as_it_is_connected() -> None:
    from agentos.mcp.remote import RemoteTransport

    nothing, ready, client = cast(Any, None), trio.Event(), Client(Egress())
    with mcp_http_server(make_server()) as server:
        session = Session(ServerSettings(name="x", url=server.url, permissions=nothing), nothing)
        transport = RemoteTransport(server.url, client, 7, permit_for(server.port))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run, transport, ready.set, None)
            with trio.fail_after(PATIENCE):
                await ready.wait()
            assert session.is_connected
            nursery.cancel_scope.cancel()
    client.forget(7)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_long_result_is_cut(mode: Mode) -> None:
    with mcp_http_server(make_server()) as server:
        async with connected(server.url, permit_for(server.port), mode) as session:
            result = await session.call_tool("long", {})

    assert 0 < len(result.content[0].text) <= 256 << 10  # type: ignore[union-attr]


async def test_the_kernel_adds_the_secret_and_the_sdk_never_has_it() -> None:
    with mcp_http_server(make_server(), TOKEN) as server:
        place = parse_domain_pattern(f"127.0.0.1:{server.port}")
        secret = SecretSettings("notes", [place], "Authorization", "Bearer ", "env:T")
        async with connected(server.url, permit_for(server.port, secret)) as session:
            result = await session.call_tool("add", {"text": TOKEN})

    assert TOKEN not in result.content[0].text  # type: ignore[union-attr]
    assert all(headers["authorization"] == f"Bearer {TOKEN}" for _, headers in server.requests)
    assert not any("httpx" in headers.get("user-agent", "") for _, headers in server.requests)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_server_that_wants_authorization_is_answered_by_the_way_to_give_a_token(mode: Mode) -> None:
    from agentos.mcp.remote import NO_OAUTH

    with mcp_http_server(make_server(), TOKEN) as server:
        error = await fail_to_connect(server.url, permit_for(server.port), mode)

    assert NO_OAUTH in error
    assert {path for path, _ in server.requests} == {"/mcp"}, "no authorization server is looked for"


async def test_a_host_that_no_rule_allows_is_not_reached() -> None:
    with mcp_http_server(make_server()) as server:
        error = await fail_to_connect(server.url, permit_for(1))

    assert "no rule of the server's allows it" in error
    assert server.requests == []


async def fail_to_connect(url: str, permit: Permit, mode: Mode = "auto") -> str:
    """The text of the error."""
    try:
        async with connected(url, permit, mode):
            pass
    except (mcp.MCPError, ExceptionGroup) as errors:
        [error] = list_errors(errors)
        return str(error)
    raise AssertionError("it is connected")


def list_errors(error: BaseException) -> list[BaseException]:
    """The errors in a group, or the one that is none."""
    if isinstance(error, BaseExceptionGroup):
        return [found for each in error.exceptions for found in list_errors(each)]
    return [error]


# -- Hostile servers ---------------------------------------------------------------------------------------------------

NAMED = {"name": "hostile", "version": "1"}


def answers(request: Asked) -> Any:
    """The reply of a server that has one tool, to each request by the older protocol; None: a notification."""
    message = json.loads(request.body or b"{}")
    if "id" not in message or "method" not in message:
        return None
    results = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": NAMED},
        "tools/list": {"tools": []},
        "tools/call": {"content": [{"type": "text", "text": "fine"}]},
    }
    return {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}


async def talk(stream: trio.abc.Stream, asked: Asked, on_call: Callable[[Any, trio.abc.Stream], Any]) -> None:
    """Answer as a server does, but a call of a tool as ``on_call`` says."""
    reply = answers(asked)
    if asked.method != "POST":
        await stream.send_all(response(b"", 405))
    elif reply is None:
        await stream.send_all(response(b"", 202))
    elif b'"tools/call"' in asked.body:
        await on_call(reply, stream)
    else:
        await stream.send_all(response(json.dumps(reply).encode(), 200, Content_Type="application/json"))


@asynccontextmanager
async def hostile(
    on_call: Callable[[Any, trio.abc.Stream], Any], *secrets: SecretSettings
) -> AsyncIterator[tuple[HttpServer, "mcp.Client"]]:
    server = HttpServer({"/mcp": partial(talk, on_call=on_call)})
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, partial(server.serve, None), 0, host="127.0.0.1"))
        server.port = listeners[0].socket.getsockname()[1]
        async with connected(server.url("/mcp"), permit_for(server.port, *secrets), "legacy") as session:
            yield server, session
        nursery.cancel_scope.cancel()


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


async def send_large_body(reply: Any, stream: trio.abc.Stream) -> None:
    from agentos.mcp.remote import MAX_MESSAGE_BYTES

    await stream.send_all(response(b" " * (MAX_MESSAGE_BYTES + 1), 200, Content_Type="application/json"))


async def send_endless_event(reply: Any, stream: trio.abc.Stream) -> None:
    await stream.send_all(EVENTS)
    while True:
        await stream.send_all(b"data: " + b"x" * 60000)


async def send_nested(reply: Any, stream: trio.abc.Stream) -> None:
    await stream.send_all(response(b"[" * 5000 + b"]" * 5000, 200, Content_Type="application/json"))


async def send_text(reply: Any, stream: trio.abc.Stream) -> None:
    await stream.send_all(response(b"hello \xe2\x80\xae", 200, Content_Type="application/json"))


async def send_error(reply: Any, stream: trio.abc.Stream) -> None:
    await stream.send_all(response(b"<html>", 502, Content_Type="text/html"))


async def hang_up(reply: Any, stream: trio.abc.Stream) -> None:
    await stream.aclose()


async def redirect(reply: Any, stream: trio.abc.Stream) -> None:
    await stream.send_all(response(b"", 307, Location="http://169.254.169.254/latest/meta-data"))


@pytest.mark.parametrize(
    ("on_call", "text"),
    [
        (send_large_body, "more than 1 MiB"),
        (send_endless_event, "an event of more than 1 MiB"),
        (send_nested, "nested deeper"),
        (send_text, r"isn't JSON: hello \u{202e}"),
        (send_error, "it answered 502"),
        (hang_up, "127.0.0.1"),
        (redirect, "a redirect that no rule allows"),
    ],
)
async def test_what_a_hostile_server_answers_fails_that_call_alone(on_call: Any, text: str) -> None:
    async with hostile(on_call) as (_, session):
        with pytest.raises(mcp.MCPError) as raised:
            await session.call_tool("any", {})
        assert (await session.list_tools()).tools == []

    assert text in str(raised.value)


NO_ID = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "bad tea"}}


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({**NO_ID, "id": None}, "it answered with an error whose id names no request: {"),
        ({**NO_ID, "id": 1.5}, "bad tea"),
        ({"jsonrpc": "2.0", "result": {}}, "it answered with a result whose id names no request: {"),
        ({"jsonrpc": "2.0", "id": True, "result": {}}, "a result whose id names no request"),
        ([{**NO_ID, "id": 1}], "it answered with a JSON array instead of one message (MCP has no batches): [{"),
        ([{"jsonrpc": "2.0", "id": 1, "result": {}}] * 2, "MCP has no batches"),
        ({"jsonrpc": "1.0", "id": 1, "result": {}}, "a message of another JSON-RPC than 2.0"),
        ({"id": 1, "result": {}}, "JSON that is no message of JSON-RPC: {"),
        (7, "JSON that is no message of JSON-RPC: 7"),
    ],
)
async def test_an_answer_that_is_no_reply_is_named_by_its_kind(kind: str, answer: Any, text: str) -> None:
    async def send(reply: Any, stream: trio.abc.Stream) -> None:
        body = json.dumps(answer).encode()
        sent = response(body, 200, Content_Type=kind) if "json" in kind else EVENTS + b"data: %s\n\n" % body
        await stream.send_all(sent)
        if "json" not in kind and '"jsonrpc"' not in json.dumps(answer):
            await stream.aclose()  # a message of a log, behind which the answer could come

    async with hostile(send) as (_, session):
        with pytest.raises(mcp.MCPError) as raised:
            await session.call_tool("any", {})
        assert (await session.list_tools()).tools == []

    assert (text if "json" in kind or "jsonrpc" in json.dumps(answer) else "without an answer") in str(raised.value)


async def test_a_secret_is_redacted_however_json_escapes_it() -> None:
    async def echo(reply: Any, stream: trio.abc.Stream) -> None:
        body = json.dumps(reply).replace("fine", "it is " + "".join(f"\\u{ord(char):04x}" for char in TOKEN))
        await stream.send_all(response(body.encode(), 200, Content_Type="application/json"))

    secret = SecretSettings("notes", [parse_domain_pattern("127.0.0.1:1")], "Authorization", "Bearer ", "env:T")
    async with hostile(echo, secret) as (_, session):
        result = await session.call_tool("any", {})

    assert result.content[0].text == "it is [redacted]"  # type: ignore[union-attr]


async def test_requests_of_a_server_beyond_the_limit_are_dropped() -> None:
    async def flood(reply: Any, stream: trio.abc.Stream) -> None:
        asks: list[Any] = [{"jsonrpc": "2.0", "id": f"q{n}", "method": "ping"} for n in range(5)] * 20
        asks += [{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}] * 100
        await stream.send_all(EVENTS + b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in [*asks, reply]))
        await stream.aclose()

    async with hostile(flood) as (server, session):
        result = await session.call_tool("any", {})

    answered = [asked for asked in server.asked if b'"id":"q' in asked.body]
    assert result.content[0].text == "fine"  # type: ignore[union-attr]
    assert 5 <= len(answered) < 100


@pytest.mark.parametrize(
    ("session", "accepted"),
    [
        ("s1", True),
        ("!" + "~" * 1023, True),
        ("", True),  # that is none
        ("s\xe9", False),
        ("s 1", False),
        ("s\t1", False),
        ("s" * 1025, False),
    ],
    ids=["short", "long", "empty", "latin-1", "blank", "tab", "too-long"],
)
async def test_a_session_whose_id_no_header_can_have_is_refused(session: str, accepted: bool) -> None:
    async def answer(stream: trio.abc.Stream, asked: Asked) -> None:
        if (reply := answers(asked)) is None:
            await stream.send_all(response(b"", 405 if asked.method == "GET" else 202))
        else:
            body = json.dumps(reply).encode()
            await stream.send_all(response(body, 200, Content_Type="application/json", Mcp_Session_Id=session))

    server = HttpServer({"/mcp": answer})
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, partial(server.serve, None), 0, host="127.0.0.1"))
        server.port = listeners[0].socket.getsockname()[1]
        if accepted:
            async with connected(server.url("/mcp"), permit_for(server.port), "legacy") as client:
                assert (await client.list_tools()).tools == []
        else:
            error = await fail_to_connect(server.url("/mcp"), permit_for(server.port), "legacy")
            assert "its session's id isn't made of 1 to 1024 visible ASCII characters" in error
        nursery.cancel_scope.cancel()

    assert {asked.header("mcp-session-id") for asked in server.asked} == (
        {None, session or None} if accepted else {None}
    )


async def test_a_session_that_the_server_has_ended_is_over() -> None:
    from agentos.mcp.remote import RemoteTransport

    async def answer(stream: trio.abc.Stream, asked: Asked) -> None:
        message, kind = json.loads(asked.body or b"{}"), "application/json"
        if message.get("method") == "tools/list":
            assert asked.header("mcp-session-id") == "s1"
            await stream.send_all(response(b"", 404))
        elif (reply := answers(asked)) is None:
            await stream.send_all(response(b"", 405 if asked.method == "GET" else 202))
        else:
            await stream.send_all(response(json.dumps(reply).encode(), 200, Content_Type=kind, Mcp_Session_Id="s1"))

    server, client = HttpServer({"/mcp": answer}), Client(Egress())
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, partial(server.serve, None), 0, host="127.0.0.1"))
        server.port = listeners[0].socket.getsockname()[1]
        transport = RemoteTransport(server.url("/mcp"), client, 7, permit_for(server.port))
        with trio.fail_after(PATIENCE):
            async with mcp.Client(transport.connect(), mode="legacy") as session:
                with pytest.raises(mcp.MCPError):
                    await session.list_tools()
                await transport.over.wait()
        nursery.cancel_scope.cancel()
    client.forget(7)

    assert transport.fault == "it has ended the session"
    assert not [asked for asked in server.asked if asked.method == "DELETE"]
