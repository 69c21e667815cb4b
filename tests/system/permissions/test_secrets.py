"""Secrets of HTTP requests through a running kernel: a server gets one, and nothing that an agent reads has it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, shared, until
from tests.support.servers.http_server import Asked, HttpServer, http_server, response
from tests.system.agents import as_agent, up

TOKEN, NEW = "s3cr3t-0123456789abcdef", "n3w-s3cr3t-0123456789"
MARK = "•••"
TOML = """
[[http.secrets]]
name = "token"
host = "127.0.0.1:PORT"
header = "Authorization: Bearer"
value_from = "env:TEST_TOKEN"
paths = ["/api/**"]

[permissions.holder]
level = "sandboxed"
secrets = ["token"]
quotas = [{ http_requests = 100000, per = "31d" }]

[permissions.holder.allow]
domains = ["127.0.0.1:PORT", "127.0.0.1:OTHER", "localhost"]

[permissions.other]
level = "sandboxed"
allow = { domains = ["127.0.0.1:PORT"] }

[[supervisor.children]]
name = "holder"
command = ["sleep", "1000"]
permissions = "holder"
env = { SEEN = "1" }

[[supervisor.children]]
name = "other"
command = ["sleep", "1000"]
permissions = "other"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with http_server() as started:
        yield started


@pytest.fixture(scope="module")
def other() -> Iterator[HttpServer]:
    with http_server({"/": response(b"other")}) as started:
        yield started


@pytest.fixture(scope="module")
def kernel(kernels: None, server: HttpServer, other: HttpServer) -> Iterator[Kernel]:
    toml = TOML.replace("PORT", str(server.port)).replace("OTHER", str(other.port))
    with shared(toml, {"TEST_TOKEN": TOKEN}) as started:
        yield started
        assert TOKEN not in started.said


@pytest.fixture
def holder(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as operator, as_agent(kernel, up(operator.inspect("holder"))["id"]) as client:
        yield client


async def echo(stream: trio.abc.Stream, asked: Asked) -> None:
    """All that a server can do: send back what it got."""
    shown = asked.header("authorization") or "nothing"
    await stream.send_all(response(shown.encode(), X_Echo=shown))


def test_the_server_gets_it_and_the_agent_does_not(holder: AgentOSClient, server: HttpServer) -> None:
    server.answers["/api/x"] = echo

    reply = up(holder.http(server.url("/api/x")))

    assert server.asked[-1].header("authorization") == f"Bearer {TOKEN}"
    assert (reply["body"], reply["headers"]["x-echo"]) == (f"Bearer {MARK}", f"Bearer {MARK}")


@pytest.mark.parametrize("size", [1, 5, 22])
def test_a_stream_split_anywhere_does_not_show_it(holder: AgentOSClient, server: HttpServer, size: int) -> None:
    data = f"data: {TOKEN}\n\n{TOKEN}{TOKEN[:-1]}".encode()

    async def drip(stream: trio.abc.Stream, asked: Asked) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(data), size):
            part = data[start : start + size]
            await stream.send_all(b"%x\r\n%s\r\n" % (len(part), part))
            await trio.sleep(0.001)
        await stream.send_all(b"0\r\n\r\n")

    server.answers["/api/drip"] = drip
    with holder.http_stream(server.url("/api/drip")) as parts:
        text = "".join(part.get("body", "") for part in parts)

    assert text == f"data: {MARK}\n\n{MARK}{TOKEN[:-1]}"


def test_an_agent_that_does_not_hold_it_sends_nothing(kernel: Kernel, server: HttpServer) -> None:
    server.answers["/api/x"] = echo
    with kernel.client() as operator, as_agent(kernel, up(operator.inspect("other"))["id"]) as client:
        assert up(client.http(server.url("/api/x")))["body"] == "nothing"


def test_a_server_that_stores_it_does_not_show_it_to_an_agent_that_does_not_hold_it(
    kernel: Kernel, holder: AgentOSClient, server: HttpServer
) -> None:
    server.answers["/api/x"] = echo
    up(holder.http(server.url("/api/x")))
    server.answers["/stored"] = response((server.asked[-1].header("authorization") or "").encode())
    held = {"level": "sandboxed", "secrets": ["token"], "allow": {"domains": [f"127.0.0.1:{server.port}"]}}

    with kernel.client() as operator, as_agent(kernel, up(operator.inspect("other"))["id"]) as client:
        assert up(client.http(server.url("/stored")))["body"] == f"Bearer {MARK}"
    number = up(holder.spawn("former", command=["sleep", "1000"], permissions=held))["id"]
    with as_agent(kernel, number) as client:
        up(client.set_permissions(permissions={**held, "secrets": []}))
        assert "secrets" not in up(client.get_permissions())["permissions"]
        assert up(client.http(server.url("/stored")))["body"] == f"Bearer {MARK}"
    holder.kill("former")


def test_a_reply_that_is_collected_later_does_not_show_it(holder: AgentOSClient, server: HttpServer) -> None:
    server.answers["/api/x"] = echo
    accepted = holder.request(Op.HTTP, {"url": server.url("/api/x"), "async": True, "request_id": 9})
    assert accepted == {"success": True, "async": True, "request_id": 9, "status": "accepted"}

    found: list[Any] = []

    def collect() -> int:
        found.extend(up(holder.request(Op.ASYNC_POLL, {}))["results"])
        return len(found)

    until(collect, "it is answered")

    assert json.loads(found[0]["payload"])["body"] == f"Bearer {MARK}"
    assert server.asked[-1].header("authorization") == f"Bearer {TOKEN}"


def test_another_path_port_or_name_gets_nothing(holder: AgentOSClient, server: HttpServer, other: HttpServer) -> None:
    server.answers["/public"] = server.answers["/api/x"] = other.answers["/api/x"] = echo

    for url in (server.url("/public"), server.url("/apiary"), other.url("/api/x")):
        holder.http(url)
    assert [each.header("authorization") for each in (*server.asked[-2:], other.asked[-1])] == [None] * 3


def test_an_agent_that_sets_the_header_or_the_host_itself_is_told(holder: AgentOSClient, server: HttpServer) -> None:
    before = len(server.asked)

    for name in ("Authorization", "aUTHORIZATION", "Host"):
        reply = holder.http(server.url("/api/x"), headers={name: "mine"})
        assert (reply["code"], reply["error"].partition(":")[0]) == ("bad_request", f"headers.{name}")
    assert len(server.asked) == before
    assert up(holder.http(server.url("/public"), headers={"Authorization": "mine"}))["status_code"]
    assert server.asked[-1].header("authorization") == "mine"


def test_a_redirect_takes_it_nowhere_else(holder: AgentOSClient, server: HttpServer, other: HttpServer) -> None:
    server.answers["/api/away"] = response(b"", 302, Location=other.url("/"))
    server.answers["/api/leak"] = response(b"", 302, Location=other.url(f"/?t={TOKEN}"))
    before = len(other.asked)

    assert up(holder.http(server.url("/api/away")))["body"] == "other"
    assert other.asked[-1].header("authorization") is None
    leak = up(holder.http(server.url("/api/leak")))

    assert len(other.asked) == before + 1, "a URL with the value isn't followed"
    assert (leak["status_code"], leak["headers"]["location"]) == (302, other.url(f"/?t={MARK}"))


def test_no_error_audit_entry_explanation_or_state_has_it(
    kernel: Kernel, holder: AgentOSClient, server: HttpServer
) -> None:
    server.answers["/api/broken"] = f"HTTP/1.1 200 OK\r\n{TOKEN} x\r\n\r\n".encode()
    server.answers["/api/x"] = echo

    error = holder.http(server.url("/api/broken"))
    assert (error["success"], TOKEN in error["error"]) == (False, False)
    up(holder.http(server.url("/api/x"), "POST", body="x"))
    with kernel.client() as operator:
        until(lambda: "POST" in json.dumps(operator.get_audit_log(limit=100)), "it is in the audit log")
        number = up(operator.inspect("holder"))["id"]
        shown: list[Any] = [
            operator.get_audit_log(limit=1000),
            operator.inspect("holder"),
            operator.get_permissions(number),
            operator.explain("holder", "HTTP", {"url": server.url("/api/x")}),
            operator.logs("holder"),
            holder.get_permissions(),
            operator.status(),
        ]
    assert TOKEN not in json.dumps(shown)
    assert up(shown[2])["permissions"]["secrets"] == ["token"]
    assert not [path for path in kernel.place.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_the_agents_processes_and_its_proc_do_not_have_it(kernel: Kernel, holder: AgentOSClient) -> None:
    shown = up(holder.exec("env; cat /proc/*/environ /proc/*/cmdline 2>&1 | tr '\\0' '\\n'"))["stdout"]

    assert "SEEN=1" in shown
    assert TOKEN not in shown
    assert "TEST_TOKEN" not in shown


def test_a_child_does_not_get_a_secret_that_its_parent_lacks(kernel: Kernel, holder: AgentOSClient) -> None:
    asked = {"level": "sandboxed", "secrets": ["token"]}
    with kernel.client() as operator, as_agent(kernel, up(operator.inspect("other"))["id"]) as client:
        refused = client.spawn("thief", command=["true"], permissions=asked)
        unknown = client.spawn("thief", command=["true"], permissions={"secrets": ["nothing"]})

    assert (refused["code"], "secret token" in refused["error"]) == ("permission_denied", True)
    assert (unknown["code"], unknown["error"]) == (
        "bad_request",
        "permissions.secrets[0]: no secret is called 'nothing'",
    )
    assert up(holder.spawn("heir", command=["sleep", "1000"], permissions=asked))["id"]
    holder.kill("heir")


def test_a_reload_takes_a_changed_value_and_a_bad_one_changes_nothing(
    own_kernel: OwnKernel, server: HttpServer
) -> None:
    server.answers["/api/x"] = echo
    toml = TOML.replace("PORT", str(server.port)).replace("OTHER", "1")
    with pytest.raises(AssertionError, match="variable TEST_TOKEN"):
        own_kernel(toml)
    kernel = own_kernel("[kernel]\n")
    file = kernel.place / "token"
    toml = toml.replace("env:TEST_TOKEN", f"file:{file}")
    (kernel.place / "agentos.toml").write_text(toml)

    with kernel.client() as operator:
        missing = operator.reload()
        assert (missing["code"], "value_from" in missing["error"]) == ("bad_request", True)
        file.touch(0o600)
        for value in (TOKEN, NEW):
            file.write_text(value)
            up(operator.reload())
            until(lambda: operator.inspect("holder").get("state") == "running", "it runs")
            with as_agent(kernel, up(operator.inspect("holder"))["id"]) as client:
                reply = up(client.http(server.url("/api/x")))
            assert server.asked[-1].header("authorization") == f"Bearer {value}"
            assert reply["body"] == f"Bearer {MARK}"
        file.write_text("short")
        assert operator.reload()["code"] == "bad_request"
        with as_agent(kernel, up(operator.inspect("holder"))["id"]) as client:
            server.answers["/api/old"] = response(TOKEN.encode())
            assert up(client.http(server.url("/api/old")))["body"] == MARK, "the former value is redacted, too"
        assert server.asked[-1].header("authorization") == f"Bearer {NEW}"


def test_quotas_of_requests_and_bytes_are_charged_to_the_ancestors_and_shown(
    kernel: Kernel, server: HttpServer
) -> None:
    server.answers["/sized"] = response(b"x" * 1000)
    domains = {"domains": [f"127.0.0.1:{server.port}"]}
    quotas = [{"http_requests": 3, "http_bytes": "1K", "per": "31d"}]
    with kernel.client() as operator:
        parent = up(
            operator.spawn(
                "payer",
                command=["sleep", "1000"],
                permissions={"level": "sandboxed", "allow": domains, "quotas": quotas},
            )
        )["id"]
        with as_agent(kernel, parent) as client:
            child = up(
                client.spawn("child", command=["sleep", "1000"], permissions={"level": "sandboxed", "allow": domains})
            )["id"]
            with as_agent(kernel, child) as below:
                assert up(below.http(server.url("/sized")))["body"] == "x" * 1000
            budgets = {one["what"]: one for one in up(operator.inspect("child"))["llm"]["budgets"]}
            assert (budgets["http_requests"]["used"], budgets["http_requests"]["most"]) == (1, 3)
            own = {one["what"]: one["by_default"] for one in up(operator.inspect("payer"))["llm"]["budgets"]}
            assert own == {"http_requests": False, "http_bytes": False, "tokens": True}, "the model's default stays"
            assert (budgets["http_bytes"]["used"], budgets["http_bytes"]["name"]) == (1000, "payer")

            assert up(client.http(server.url("/sized")))["success"], "24 bytes were left, and it may begin"
            before = len(server.asked)
            refused = client.http(server.url("/sized"))

        assert refused["code"] == "quota_exceeded"
        assert refused["error"].startswith("http_bytes: the quota of 'payer' is 1024 per 31d, of which 2000 used")
        assert "it renews in" in refused["error"]
        assert len(server.asked) == before, "nothing was sent"
        operator.kill("payer")
