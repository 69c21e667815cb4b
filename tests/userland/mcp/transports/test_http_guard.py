"""Which HTTP requests reach MCP: Host, Origin and token of each are judged first. No kernel is needed for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from agentos.userland.mcp import clients
from agentos.userland.mcp.transports.http_guard import LOOPBACK_NAMES, PATH, find_fault
from tests.support.clients import httpx2
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE
from tests.userland.mcp.transports.http_serving import CLIENTS_GENERATORS, connected, make_client, serving_http

pytestmark = CLIENTS_GENERATORS

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with serving_http(str(tmp_path / "no-kernel"), tmp_path, names=("agents.example",)) as found:
        yield found


async def post(url: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=PATIENCE) as sender:
        return await sender.post(url, json=INITIALIZE, headers={**ACCEPT, **headers})


def bearer(token: str) -> str:
    return f"Bearer {token}"


async def test_a_request_with_a_token_is_served(url: str, tmp_path: Path) -> None:
    answer = await post(url, authorization=bearer(make_client(tmp_path, "n8n")))

    assert answer.status_code == 200
    assert '"serverInfo":{"name":"agentos"' in answer.text


@pytest.mark.parametrize(
    "authorization",
    ["", "Basic bjhuOng=", "Bearer", "Bearer agentos-mcp.n8n.x", "Bearer ../../x", "Bearer " + "x" * 10_000],
)
async def test_without_a_good_token_nothing_is_served(url: str, tmp_path: Path, authorization: str) -> None:
    make_client(tmp_path, "n8n")

    answer = await post(url, **({"authorization": authorization} if authorization else {}))

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="agentos"'
    assert "`agentos mcp token NAME` makes" in answer.text


async def test_two_tokens_are_none(url: str, tmp_path: Path) -> None:
    token = bearer(make_client(tmp_path, "n8n"))

    async with httpx2.AsyncClient() as sender:
        headers = [*ACCEPT.items(), ("authorization", token), ("authorization", token)]
        answer = await sender.post(url, json=INITIALIZE, headers=headers)

    assert answer.status_code == 401


def test_a_request_with_two_hosts_is_refused_though_one_is_ours() -> None:
    hosts = [(b"host", name) for name in (b"localhost", b"evil.example")]

    refusal = find_fault({"type": "http", "path": PATH, "headers": hosts}, LOOPBACK_NAMES)

    assert refusal is not None
    assert refusal.status_code == 421


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "169.254.1.1", ""])
async def test_a_host_that_is_not_ours_is_refused_before_the_token_is_looked_at(
    url: str, tmp_path: Path, host: str
) -> None:
    answer = await post(url, host=host, authorization=bearer(make_client(tmp_path, "n8n")))

    assert answer.status_code in (400, 421)
    assert host == "" or "not a name of this server: add it with --allow-host" in answer.text


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8766", "Agents.Example", "agents.example:443"])
async def test_names_of_ours_are_taken(url: str, tmp_path: Path, host: str) -> None:
    answer = await post(url, host=host, authorization=bearer(make_client(tmp_path, "n8n")))

    assert answer.status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost", "file://"])
async def test_a_page_of_another_site_is_refused(url: str, tmp_path: Path, origin: str) -> None:
    answer = await post(url, origin=origin, authorization=bearer(make_client(tmp_path, "n8n")))

    assert (answer.status_code, answer.text) == (403, "Origin: the request comes from a page of another site\n")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_page_of_this_server_is_served(url: str, tmp_path: Path, scheme: str) -> None:
    own = url.removesuffix("/mcp").replace("http:", f"{scheme}:")

    answer = await post(url, origin=own, authorization=bearer(make_client(tmp_path, "n8n")))

    assert answer.status_code == 200


async def test_other_paths_say_where_mcp_is(url: str) -> None:
    answer = await post(url + "/x")

    assert (answer.status_code, answer.text) == (404, "there is nothing here: MCP is served at /mcp\n")


async def test_a_revoked_token_is_refused_at_once(url: str, tmp_path: Path) -> None:
    token = make_client(tmp_path, "n8n")
    served = await post(url, authorization=bearer(token))

    clients.revoke(tmp_path, "n8n")

    refused = await post(url, authorization=bearer(token))
    assert (served.status_code, refused.status_code) == (200, 401)
    assert "was revoked" in refused.text


async def test_a_session_is_only_for_the_client_that_began_it(url: str, tmp_path: Path) -> None:
    one, other = make_client(tmp_path, "one"), make_client(tmp_path, "other")
    begun = await post(url, authorization=bearer(one))
    session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}

    stolen, own = (
        await post(url, authorization=bearer(other), **session),
        await post(url, authorization=bearer(one), **session),
    )

    assert (stolen.status_code, own.status_code) == (404, 200)


async def test_a_large_body_is_refused(url: str, tmp_path: Path) -> None:
    headers = {**ACCEPT, "authorization": bearer(make_client(tmp_path, "n8n")), "content-type": "application/json"}

    async with httpx2.AsyncClient() as sender:
        answer = await sender.post(url, content=b" " * (5 << 20), headers=headers)

    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("head", "pieces"),
    [
        ("POST /mcp HTTP/1.1\r\ncontent-length: 100", b""),
        ("POST /mcp HTTP/1.1\r\ncontent-length: 1000000", b"{ "),
        ("POST /mcp HTTP/1.1\r\ntransfer-encoding: chunked", b"1\r\n{\r\n"),
    ],
    ids=["none", "slow", "chunked"],
)
async def test_a_body_that_does_not_arrive_in_time_gives_its_place_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, pieces: bytes
) -> None:
    from agentos.userland.mcp.transports import http

    monkeypatch.setattr(http, "BODY_TIMEOUT", 0.5)
    token, answer = make_client(tmp_path, "n8n"), b""
    kind = "accept: application/json, text/event-stream\r\ncontent-type: application/json"
    async with serving_http(str(tmp_path / "no-kernel"), tmp_path) as url:
        with trio.fail_after(PATIENCE):
            stream = await trio.open_tcp_stream("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            async with trio.open_nursery() as nursery, stream:
                begin = f"{head}\r\nhost: localhost\r\n{kind}\r\nauthorization: {bearer(token)}\r\n\r\n"
                await stream.send_all(begin.encode())

                async def send_slowly() -> None:
                    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                        while True:
                            await stream.send_all(pieces)
                            await trio.sleep(0.05)

                nursery.start_soon(send_slowly)
                with suppress(trio.BrokenResourceError):  # it has closed while pieces were on their way
                    while data := await stream.receive_some():
                        answer += data
                nursery.cancel_scope.cancel()

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the body did not arrive within 0.5 s" in answer


async def test_garbage_ends_its_own_connection_alone(url: str, tmp_path: Path) -> None:
    port = int(url.split(":")[2].split("/")[0])
    for garbage in (b"\x16\x03\x01\x00", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"x" * 100_000):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(garbage)
        await stream.aclose()

    answer = await post(url, authorization=bearer(make_client(tmp_path, "n8n")))

    assert answer.status_code == 200


async def test_one_clients_open_requests_are_limited_and_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentos.userland.mcp.transports import http

    monkeypatch.setattr(http, "MAX_OPEN_REQUESTS", 2)
    greedy, other = make_client(tmp_path, "greedy"), make_client(tmp_path, "other")
    async with serving_http(str(tmp_path / "no-kernel"), tmp_path) as url:
        port, known = int(url.split(":")[2].split("/")[0]), {"mcp-session-id": "none"}
        head = f"POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer(greedy)}\r\ncontent-length: 9\r\n\r\n"
        streams = list[trio.SocketStream]()

        with trio.fail_after(PATIENCE):
            while (refused := await post(url, authorization=bearer(greedy), **known)).status_code == 404:
                streams.append(await trio.open_tcp_stream("127.0.0.1", port))
                await streams[-1].send_all(head.encode())  # which is refused itself if it comes in beside another
        served = await post(url, authorization=bearer(other))
        for stream in streams:
            await stream.aclose()

    assert (refused.status_code, served.status_code) == (429, 200)


async def test_entries_that_cannot_be_read_are_no_tokens(url: str, tmp_path: Path) -> None:
    token = make_client(tmp_path, "n8n")
    (tmp_path / "mcp/clients").chmod(0o777)

    answer = await post(url, authorization=bearer(token))

    assert answer.status_code == 503


async def test_without_a_kernel_a_client_is_told_so(url: str, tmp_path: Path) -> None:
    async with connected(url, make_client(tmp_path, "n8n")) as client:
        with pytest.raises(Exception, match="no kernel at"):
            await client.list_tools()


@each_row(
    "text", ["8766", ":8766", "localhost", "localhost:", "localhost:x", "localhost:70000", "localhost:" + "9" * 5000]
)
def test_an_address_has_a_host_and_a_port(text: str) -> None:
    from agentos.userland.mcp.transports import http

    with pytest.raises(http.HTTPError, match="expected HOST:PORT"):
        http.parse_address(text)


def test_ipv6_is_written_in_brackets() -> None:
    from agentos.userland.mcp.transports import http

    assert http.parse_address("[::1]:80") == ("::1", 80)


def test_another_address_than_the_loopbacks_has_to_be_allowed() -> None:
    from agentos.userland.mcp.transports import http

    with pytest.raises(http.HTTPError, match="no TLS: tokens could be read on the network"):
        http.open_listener(http.HTTPOptions("0.0.0.0", 0))

    http.open_listener(http.HTTPOptions("0.0.0.0", 0, insecure=True)).close()


def test_a_taken_port_is_said() -> None:
    from agentos.userland.mcp.transports import http

    with (
        http.open_listener(http.HTTPOptions("127.0.0.1", 0)) as listener,
        pytest.raises(http.HTTPError, match="can't listen on 127"),
    ):
        http.open_listener(http.HTTPOptions("127.0.0.1", listener.getsockname()[1]))
