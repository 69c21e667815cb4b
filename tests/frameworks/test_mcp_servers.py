"""Servers of MCP from PyPI and npm, unmodified, each in a jail; an agent in another jail calls their tools.

``make agents`` installs them, each into an environment of its own.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.frameworks.programs import report_of
from tests.support.kernel import Kernel, shared
from tests.support.servers.http_server import HttpServer, http_server, response
from tests.support.servers.mcp_servers import allow_tools, text_of
from tests.system.agents import up

PLACE = Path(sys.prefix, "mcp-servers")
AS_AUTHOR = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
PAGE = b"<html><body><article><h1>Tides</h1><p>High water is at noon.</p></article></body></html>"


@frozen
class Server:
    """``works`` and ``fails``: a tool, its arguments, and words of its result. ``{port}`` is that of a site.

    ``marked``: it marks a result that is an error.
    """

    package: str
    command: Sequence[str]
    works: tuple[str, Mapping[str, Any], str]
    fails: tuple[str, Mapping[str, Any], str]
    settings: str = ""
    marked: bool = True


def of_python(package: str, *args: str) -> tuple[str, Sequence[str]]:
    return package, ["/usr/bin/env", "/agent/bin/python", f"/agent/bin/{package}", *args]


SERVERS = {
    "fetch": Server(
        *of_python("mcp-server-fetch", "--allow-private-ips"),
        ("fetch", {"url": "http://127.0.0.1:{port}/tides"}, "High water is at noon."),
        (
            "fetch",
            {"url": "http://127.0.0.1:{port}/none"},
            "Failed to fetch http://127.0.0.1:{port}/none - status code 404",
        ),
        """
network = "filtered"
# Loopback is reached by the filter, too; where it finds Node.js, it installs a package of npm at its first page.
env = { no_proxy = "", NO_PROXY = "", PATH = "/agent/bin" }
permissions = { level = "minimal", allow = { domains = ["127.0.0.1:{port}"] } }
""",
    ),
    "git": Server(
        *of_python("mcp-server-git", "--repository", "/workspace"),
        ("git_log", {"repo_path": "/workspace"}, "Message: Tell the tides"),
        ("git_show", {"repo_path": "/workspace", "revision": "v9"}, "Ref 'v9' did not resolve to an object"),
    ),
    "sqlite": Server(
        *of_python("mcp-server-sqlite", "--db-path", "/workspace/tides.db"),
        ("create_table", {"query": "CREATE TABLE tides (at TEXT)"}, "Table created successfully"),
        ("read_query", {"query": "SELECT at FROM ebbs"}, "Database error: no such table: ebbs"),
        marked=False,
    ),
    "time": Server(
        *of_python("mcp-server-time"),
        (
            "convert_time",
            {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
            "T21:00:00+09:00",
        ),
        ("get_current_time", {"timezone": "Mars/Base"}, "No time zone found with key Mars/Base"),
    ),
    "files": Server(
        "server-filesystem",
        ["node", "/agent/node_modules/.bin/mcp-server-filesystem", "/workspace"],
        ("read_text_file", {"path": "/workspace/tides.txt"}, "noon"),
        ("read_text_file", {"path": "/etc/passwd"}, "Access denied - path outside allowed directories"),
    ),
}


@pytest.fixture(scope="module")
def site(framework: None) -> Iterator[HttpServer]:
    with http_server() as served:
        served.answers["/tides"] = response(PAGE, Content_Type="text/html")
        yield served


@pytest.fixture(scope="module")
def kernel(kernels: None, site: HttpServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    for server in SERVERS.values():
        if not (PLACE / server.package / "ready").exists():
            pytest.skip(f"{server.package} isn't in {PLACE}, run `make agents`: servers of MCP are NOT tested")
    work = tmp_path_factory.mktemp("work")
    (work / "tides.txt").write_text("noon\n")
    for words in (["init", "-q"], ["add", "."], [*AS_AUTHOR, "commit", "-qm", "Tell the tides"]):
        subprocess.run(["git", *words], cwd=work, check=True)
    tables = [
        f"""
[mcp.servers.{name}]
command = {json.dumps(server.command)}
code = "{PLACE / server.package}"
workspace = "{work}"
{server.settings}
"""
        for name, server in SERVERS.items()
    ]
    with shared("".join(tables).replace("{port}", str(site.port))) as started:
        yield started


@pytest.mark.parametrize("name", SERVERS)
def test_an_agent_calls_a_tool_of_a_server_and_is_told_its_errors(kernel: Kernel, site: HttpServer, name: str) -> None:
    def filled(text: str) -> str:
        return text.replace("{port}", str(site.port))

    server = SERVERS[name]
    calls = [(f"{name}.{tool}", arguments) for tool, arguments, _ in (server.works, server.fails)]
    permissions = {"level": "sandboxed", "allow": {"tools": [f"{name}.*"]}}
    with kernel.client() as operator:
        allow_tools(operator, name)
        asked = filled(json.dumps(calls))
        report = report_of(
            kernel, operator, "calls_mcp.py", python=sys.executable, args=[asked], permissions=permissions
        )

    assert {tool for tool, _ in calls} <= set(report["tools"])
    works, fails = report["replies"]
    assert server.works[2] in text_of(works)
    assert not works["is_error"]
    assert filled(server.fails[2]) in text_of(fails)
    assert fails["is_error"] == server.marked


def test_a_page_that_no_rule_allows_is_not_fetched(kernel: Kernel) -> None:
    with kernel.client() as operator, http_server() as other:
        other.answers["/tides"] = response(PAGE)
        allow_tools(operator, "fetch")
        refused = up(operator.tool_call("fetch.fetch", {"url": other.url("/tides")}))

    assert refused["is_error"]
    assert "High water" not in text_of(refused)
    assert other.connections == 0
