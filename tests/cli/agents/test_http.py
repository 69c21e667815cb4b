"""``agentos http``: requests of the operator's, and by the rules of an agent."""

import json
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Agentos
from tests.support.commands import run_agentos_bytes
from tests.support.kernel import Kernel, environment
from tests.support.servers.http_server import HttpServer, http_server, response
from tests.system.agents import up


@pytest.fixture
def server(kernel: Kernel, agentos: Agentos) -> Iterator[HttpServer]:
    """A server that ``some`` may GET from, below /open/; its parent as well, and everywhere."""
    with (
        http_server({"/open/x": response(b"here\n"), "/shut": response(b"secret")}) as server,
        kernel.client() as client,
    ):
        number = up(client.spawn("some", command=["sleep", "1000"]))["id"]
        rules = [f"GET 127.0.0.1:{server.port}/open/**"]
        up(client.set_permissions({"allow": {"domains": rules}}, agent_id=number))
        yield server


def test_a_request_by_an_agents_rules_shows_the_response(agentos: Agentos, server: HttpServer) -> None:
    shown = agentos("http", "GET", server.url("/open/x"), "-H", "X-A: b c", "--as", "some")

    assert (shown.stdout, shown.returncode) == ("here\n", 0)
    assert shown.stderr.startswith("200, 5 bytes, ")
    assert server.asked[-1].header("x-a") == "b c"
    reply = json.loads(agentos("http", "GET", server.url("/open/x"), "--as", "some", "--json").stdout)
    assert (reply["status_code"], reply["body"]) == (200, "here\n")


def test_a_request_that_the_agents_rules_refuse_is_not_sent_and_names_the_rule(
    agentos: Agentos, server: HttpServer
) -> None:
    url = server.url("/open/x")

    refused = agentos("http", "POST", url, "--data", "x", "--as", "some")

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"agentos: HTTP POST {url}: no rule of SET_PERMS by operator#")
    reply = json.loads(agentos("http", "POST", url, "--as", "some", "--json").stdout)
    assert (reply["code"], reply["success"]) == ("permission_denied", False)
    assert server.asked == []


def test_what_the_operators_own_rules_refuse_may_be_sent_as_an_agent(agentos: Agentos, server: HttpServer) -> None:
    refused = agentos("http", "GET", server.url("/open/x"))

    assert (refused.returncode, server.asked) == (1, [])
    assert refused.stderr.endswith("; with --as AGENT the rules of that agent decide\n")


def test_the_agents_rules_also_decide_on_redirects(agentos: Agentos, server: HttpServer) -> None:
    server.answers["/open/moved"] = response(b"moved", 302, Location="/shut")

    shown = agentos("http", "GET", server.url("/open/moved"), "--as", "some")

    assert shown.stdout == "moved"
    assert shown.stderr.startswith("302, 5 bytes, ")
    assert [asked.target for asked in server.asked] == ["/open/moved"]


def test_an_agent_gets_no_more_by_the_rules_of_another(kernel: Kernel, agentos: Agentos, server: HttpServer) -> None:
    with kernel.client() as client:
        number = up(client.spawn("other", command=["sleep", "1000"], permissions={"level": "sandboxed"}))["id"]

    tried = agentos(
        *("http", "GET", server.url("/open/x"), "--as", "some"), AGENTOS_SOCKET=str(kernel.runtime / f"{number}.sock")
    )

    assert tried.returncode == 1
    assert "some" in tried.stderr
    assert server.asked == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("GET", "example.com"), "agentos: url: a URL begins with http:// or https://\n"),
        (("GET", "http://a/", "-H", "x"), "agentos: -H x: expected a name, a colon and a value\n"),
        (("GET", "http://a/", "--as", "nobody"), "agentos: no agent is called 'nobody'\n"),
    ],
)
def test_mistakes_are_told_in_a_line(agentos: Agentos, words: tuple[str, ...], text: str) -> None:
    told = agentos("http", *words)

    assert (told.returncode, told.stderr) == (1, text)


def test_bytes_are_written_as_they_came(kernel: Kernel, agentos: Agentos, server: HttpServer) -> None:
    server.answers["/open/raw"] = response(b"\x00\xff")

    words = ["http", "GET", server.url("/open/raw"), "--as", "some", "--socket", kernel.socket]
    shown = run_agentos_bytes(words, kernel.place, environment(kernel.place))

    assert (shown.returncode, shown.stdout) == (0, b"\x00\xff")
