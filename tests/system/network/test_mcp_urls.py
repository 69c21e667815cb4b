"""MCP servers at a URL through a running kernel: the rules and secrets of their own permission sets."""

from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.support.clients import mcpserver
from tests.support.kernel import Kernel, shared
from tests.support.servers.mcp_http import McpHttpServer, mcp_http_server
from tests.support.servers.mcp_servers import allow_tools, text_of, using
from tests.system.agents import up

TOKEN = "a-token-of-the-operators"
TOML = """
[[http.secrets]]
name = "notes"
host = "127.0.0.1:{port}"
header = "Authorization: Bearer"
value_from = "env:NOTES_TOKEN"

[mcp.servers.notes]
url = "http://127.0.0.1:{port}/mcp"
permissions = {{ level = "minimal", allow = {{ domains = ["127.0.0.1:{port}"] }}, secrets = ["notes"] }}

[mcp.servers.tokenless]
url = "http://127.0.0.1:{port}/mcp"
permissions = {{ level = "minimal", allow = {{ domains = ["127.0.0.1:{port}"] }} }}

[mcp.servers.named]
url = "http://localhost:{port}/mcp"
permissions = {{ level = "minimal", allow = {{ domains = ["localhost:{port}"] }} }}

[mcp.servers.ruleless]
url = "http://127.0.0.1:{port}/mcp"

[mcp.servers.asking]
url = "http://127.0.0.1:{port}/mcp"
permissions = {{ level = "minimal", ask = {{ domains = ["127.0.0.1:{port}"] }} }}

[mcp.servers.absent]
url = "http://127.0.0.1:1/mcp"
permissions = {{ level = "minimal", allow = {{ domains = ["127.0.0.1:1"] }} }}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[McpHttpServer]:
    made = mcpserver.MCPServer("notes")

    @made.tool()
    def add(text: str) -> str:
        return f"noted: {text}"

    with mcp_http_server(made, TOKEN) as served:
        yield served


@pytest.fixture(scope="module")
def kernel(kernels: None, server: McpHttpServer) -> Iterator[Kernel]:
    with shared(TOML.format(port=server.port), env={"NOTES_TOKEN": TOKEN}) as started:
        yield started


@pytest.fixture
def operator(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as connected:
        yield connected


def test_an_agent_calls_a_tool_and_sees_nothing_of_the_secret(kernel: Kernel, operator: AgentOSClient) -> None:
    allow_tools(operator, "notes")
    with using(kernel, operator, "clerk", "notes.*") as agent:
        assert [tool["name"] for tool in up(agent.tools())["tools"]] == ["notes.add"]
        told = text_of(agent.tool_call("notes.add", {"text": TOKEN}))

    assert told.startswith("noted: ")
    assert TOKEN not in told


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tokenless", "OAuth isn't offered: put a token into [[http.secrets]]"),
        ("named", "127.0.0.1: "),
        ("ruleless", "no rule of "),
        ("asking", "a rule asks about it"),
        ("absent", "no connection to 127.0.0.1:1"),
    ],
)
def test_a_server_that_cannot_be_reached_says_why(operator: AgentOSClient, name: str, why: str) -> None:
    [missing] = up(operator.tools(name))["missing"]

    assert missing["server"] == name
    assert why in missing["error"]


def test_a_reload_takes_a_rule_away(kernel: Kernel, operator: AgentOSClient, server: McpHttpServer) -> None:
    file = kernel.place / "agentos.toml"
    text = file.read_text()
    file.write_text(text.replace(f'allow = {{ domains = ["127.0.0.1:{server.port}"] }}, secrets', "secrets"))
    up(operator.reload())
    try:
        [missing] = up(operator.tools("notes"))["missing"]
    finally:
        file.write_text(text)
        up(operator.reload())

    assert "no rule of " in missing["error"]
