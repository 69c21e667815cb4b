"""The MCP Inspector's command line lists our tools, and each of them does what it says."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentos.userland.mcp import clients
from agentos.userland.mcp.clients import ClientEntry
from tests.support.kernel import Kernel, running
from tests.support.runs.forked import Commands
from tests.support.servers.http_server import HttpServer, http_server, response
from tests.support.servers.npm import need_packages
from tests.support.wire import PATIENCE
from tests.userland.mcp.transports.http_serving import make_client, served_by_command

PACKAGE = "@modelcontextprotocol/inspector-cli@1.0.3"  # the newest for Debian's Node 20: the Inspector 2 needs 22
CLI = "node_modules/@modelcontextprotocol/inspector-cli/build/index.js"


@pytest.fixture(scope="module")
def inspector(framework: None) -> Path:
    """The directory with the Inspector's command line, installed once into the virtual environment."""
    return need_packages("inspector-1.0.3", PACKAGE)


@pytest.fixture(scope="module")
def site() -> Iterator[HttpServer]:
    with http_server({"/": response(b"here")}) as server:
        yield server


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with running('[llm]\nprovider = "offline"\n') as started:
        yield started


@pytest.fixture(scope="module")
def command(kernel: Kernel, site: HttpServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """How the Inspector starts our server, for a client that may do all."""
    rights = {"level": "unrestricted", "allow": {"domains": [site.url("/").split("/")[2]]}}
    clients.create(kernel.state_dir, ClientEntry("inspector", "stdio", 1000.0, permissions=rights))
    words = ["mcp", "--client", "inspector", "--socket", kernel.socket, "--state-dir", str(kernel.state_dir)]
    with closing(Commands(tmp_path_factory.mktemp("commands"))) as commands:
        yield [str(commands.directory / "agentos"), *words]


def test_a_tool_is_called_from_its_command_line_over_http(inspector: Path, kernel: Kernel) -> None:
    token = make_client(kernel.state_dir, "inspector-http", level="unrestricted")
    options = ["--transport", "http", "--header", f"Authorization: Bearer {token}"]
    call = ["--method", "tools/call", "--tool-name", "agentos_exec", "--tool-arg", "command=echo hello"]
    with served_by_command(kernel) as url:
        done = subprocess.run(
            ["node", str(inspector / CLI), url, *options, *call],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=(inspector / CLI).parent,  # it looks for its package.json from there
        )

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["structuredContent"]["stdout"] == "hello\n"


def test_every_tool_is_listed_with_a_schema_and_hints_and_works_in_it(
    inspector: Path, command: list[str], site: HttpServer, tmp_path: Path
) -> None:
    from agentos.userland.mcp.tools import TOOLS

    file = str(tmp_path / "notes.txt")
    calls: list[tuple[str, dict[str, str], str]] = [
        ("agentos_write", {"path": file, "content": "hello"}, '"bytes_written":5'),
        ("agentos_read", {"path": file, "limit": "4"}, '"content":"hell"'),
        ("agentos_exec", {"command": "echo one; exit 3", "timeout": "20"}, '"exit_code":3'),
        ("agentos_think", {"prompt": "hello"}, '"finish_reason":"stop"'),
        ("agentos_http", {"url": site.url("/")}, '"body":"here"'),
        ("agentos_spawn", {"name": "sleeper", "command": '["sleep", "1000"]'}, '"name":"sleeper"'),
        ("agentos_list_agents", {"all": "true"}, '"name":"sleeper"'),
        ("agentos_pause", {"name": "sleeper"}, '"paused":true'),
        ("agentos_resume", {"name": "sleeper"}, '"resumed":true'),
        ("agentos_restart", {"name": "sleeper"}, '"name":"sleeper"'),
        ("agentos_send", {"to": "sleeper", "message": "hello"}, '"delivered_to":'),
        ("agentos_logs", {"name": "sleeper"}, '"lines":['),
        ("agentos_kill", {"name": "sleeper"}, '"killed":true'),
        ("agentos_wait", {"name": "sleeper"}, '"signal":15'),
        ("agentos_recv", {"max": "1"}, '"messages":[]'),
        ("agentos_state_set", {"key": "colour", "value": "red"}, '"version":1'),
        ("agentos_state_get", {"key": "colour"}, '"value":"red"'),
        ("agentos_state_list", {"prefix": "col"}, '"keys":["colour"]'),
        ("agentos_state_delete", {"key": "colour"}, '"deleted":true'),
        ("agentos_approvals", {}, '"approvals":[]'),
    ]
    assert {name for name, _, _ in calls} == {tool.name for tool in TOOLS}
    script = str(Path(__file__).with_name("inspector.mjs"))
    done = subprocess.run(
        ["node", script, str(inspector), *command],
        input=json.dumps([(name, given) for name, given, _ in calls]),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [tool["name"] for tool in found["tools"]] == [tool.name for tool in TOOLS]
    for tool in found["tools"]:
        assert tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object"
        assert {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} <= set(tool["annotations"])
    for (name, result), (_, _, expected) in zip(found["results"], calls, strict=True):
        assert not result.get("isError"), (name, result)
        assert expected in json.dumps(result["structuredContent"], separators=(",", ":")), (name, result)
