"""HTTP calls answered from a HAR file by a running kernel, which sends nothing."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.services.http.test_har import entry, write
from tests.support.kernel import Kernel, shared, until
from tests.support.servers.http_server import HttpServer, http_server
from tests.support.wire import PATIENCE
from tests.system.agents import as_agent, up


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    """What must not be asked."""
    with http_server() as started:
        yield started


@pytest.fixture(scope="module")
def kernel(kernels: None, server: HttpServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    image = {"size": 3, "text": base64.b64encode(b"\xff\xd8\xff").decode(), "encoding": "base64"}
    file = write(
        tmp_path_factory.mktemp("har") / "shop.har",
        entry(server.url("/items?page=1"), '["clay"]', response={"headers": [{"name": "ETag", "value": "7"}]}),
        entry(server.url("/items?page=1"), "[]"),
        entry("https://shop.example/photo", response={"content": image}),
        entry(server.url("/stream"), "é" * 100_000),
    )
    with shared(f'[http]\ncassette = "{file}"\n') as started:
        yield started


@pytest.fixture(scope="module")
def agent(kernel: Kernel, server: HttpServer) -> Iterator[tuple[AgentOSClient, AgentOSClient, int]]:
    """The operator, an agent that may reach the server and the shop, and its id."""
    allowed = {"level": "sandboxed", "allow": {"domains": [f"127.0.0.1:{server.port}", "shop.example"]}}
    with kernel.client() as operator:
        spawned = operator.spawn("buyer", command=["sleep", "1000"], network="filtered", permissions=allowed)
        number = up(spawned)["id"]
        with as_agent(kernel, number) as buyer:
            yield operator, buyer, number


def test_a_call_gets_the_recorded_response_under_its_own_rules_and_nothing_is_sent(
    agent: Any, server: HttpServer
) -> None:
    operator, buyer, number = agent

    first, second = (up(buyer.http(server.url("/items?page=1"))) for _ in range(2))
    photo = up(buyer.http("https://shop.example/photo"))
    gone = buyer.http(server.url("/items?page=2"))
    refused = buyer.http("https://elsewhere.example/photo")

    assert (first["body"], first["headers"]["etag"], second["body"]) == ('["clay"]', "7", "[]")
    assert (photo["encoding"], base64.b64decode(photo["body"])) == ("base64", b"\xff\xd8\xff")
    assert gone["code"] == "unavailable"
    assert gone["error"].endswith("shop.har has no response to this request: the same as entry 1 but for query 'page'")
    assert refused["code"] == "permission_denied"

    def outcomes() -> list[str]:
        logged = operator.get_audit_log(category="network", agent_id=number, limit=1000)["entries"]
        return [entry["about"] for entry in logged]

    until(lambda: "GET https://shop.example/photo (200, 3 bytes)" in outcomes(), "the call is in the audit log")
    assert server.connections == 0


def test_a_recorded_body_is_streamed(agent: Any, server: HttpServer) -> None:
    _, buyer, _ = agent

    with buyer.http_stream(server.url("/stream")) as stream:
        parts = [part["body"] for part in stream if "body" in part]

    assert "".join(parts) == "é" * 100_000
    assert len(parts) > 1


def test_connections_of_a_program_itself_are_refused(agent: Any, kernel: Kernel) -> None:
    operator, _, _ = agent
    program = "import urllib.request; urllib.request.urlopen('http://shop.example/photo')"

    ran = up(operator.exec(["python3", "-c", program], name="buyer", timeout=PATIENCE))

    assert any(error in ran["stderr"] for error in ("RemoteDisconnected", "ConnectionResetError", "BrokenPipeError"))
    assert "buyer: [http] cassette has no connections: its program's own are refused" in kernel.said
