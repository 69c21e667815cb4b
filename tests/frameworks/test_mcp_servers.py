"""Servers of MCP from PyPI and npm, unmodified: `agentos mcp add` installs each, and an agent calls its tools."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.frameworks.programs import report_of
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, shared
from tests.support.runs.rounds import some
from tests.support.servers.http_server import HttpServer, http_server, response
from tests.support.servers.mcp_servers import text_of
from tests.system.agents import up

REGISTRIES = ("https://pypi.org/simple/", "https://registry.npmjs.org/")
AS_AUTHOR = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
PAGE = b"<html><body><article><h1>Tides</h1><p>High water is at noon.</p></article></body></html>"


@frozen
class Server:
    """``works`` and ``fails``: a tool, its arguments, and words of its result. ``{port}`` is that of a site.

    ``command`` is what its documentation runs, ``options`` what `agentos mcp add` gets beside.
    ``marked``: it marks a result that is an error.
    """

    command: str
    works: tuple[str, Mapping[str, Any], str]
    fails: tuple[str, Mapping[str, Any], str]
    options: Sequence[str] = ()
    marked: bool = True


SERVERS = {
    "fetch": Server(
        "uvx mcp-server-fetch --allow-private-ips",
        ("fetch", {"url": "http://127.0.0.1:{port}/tides"}, "High water is at noon."),
        (
            "fetch",
            {"url": "http://127.0.0.1:{port}/none"},
            "Failed to fetch http://127.0.0.1:{port}/none - status code 404",
        ),
        # Loopback is reached by the filter, too; with Node.js it installs a package of npm at its first page.
        ["--domain=127.0.0.1:{port}", "-eno_proxy=", "-eNO_PROXY=", "-ePATH=/agent/bin"],
    ),
    "files": Server(
        "npx -y @modelcontextprotocol/server-filesystem /workspace",
        ("read_text_file", {"path": "/workspace/tides.txt"}, "noon"),
        ("read_text_file", {"path": "/etc/passwd"}, "Access denied - path outside allowed directories"),
        ["--workspace={work}"],
    ),
    "git": Server(
        "uvx mcp-server-git --repository /workspace",
        ("git_log", {"repo_path": "/workspace"}, "Message: Tell the tides"),
        ("git_show", {"repo_path": "/workspace", "revision": "v9"}, "Ref 'v9' did not resolve to an object"),
        ["--workspace={work}"],
    ),
    "sqlite": Server(
        "uvx --with mcp<2 mcp-server-sqlite --db-path /workspace/tides.db",
        ("create_table", {"query": "CREATE TABLE tides (at TEXT)"}, "Table created successfully"),
        ("read_query", {"query": "SELECT at FROM ebbs"}, "Database error: no such table: ebbs"),
        ["--workspace={work}"],
        marked=False,
    ),
    "time": Server(
        "uvx mcp-server-time",
        (
            "convert_time",
            {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
            "T21:00:00+09:00",
        ),
        ("get_current_time", {"timezone": "Mars/Base"}, "No time zone found with key Mars/Base"),
    ),
}


@pytest.fixture(scope="module")
def site(framework: None) -> Iterator[HttpServer]:
    with http_server() as served:
        served.answers["/tides"] = response(PAGE, Content_Type="text/html")
        yield served


@pytest.fixture(scope="module")
def kernel(kernels: None, framework: None) -> Iterator[Kernel]:
    for registry in REGISTRIES:
        if subprocess.run(["curl", "-sf", "--max-time", "60", "-o", os.devnull, registry], check=False).returncode:
            pytest.skip(f"{registry} doesn't answer: servers of MCP are NOT tested")
    with shared("") as started:
        yield started


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("work")
    (made / "tides.txt").write_text("noon\n")
    for words in (["init", "-q"], ["add", "."], [*AS_AUTHOR, "commit", "-qm", "Tell the tides"]):
        subprocess.run(["git", *words], cwd=made, check=True)
    return made


@pytest.fixture(scope="module")
def add(kernel: Kernel, site: HttpServer, work: Path) -> Callable[[str], None]:
    """Adds one of the servers, which installs it, unless another test has."""

    @cache
    def add_server(name: str) -> None:
        options = [option.format(port=site.port, work=work) for option in SERVERS[name].options]
        words = ["mcp", "add", name, "--yes", *options, "--", *SERVERS[name].command.split()]
        added = run_agentos(words, kernel.place, {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket})
        assert (added.stderr, added.returncode) == ("", 0), added.stdout

    return add_server


@pytest.mark.parametrize("name", some(SERVERS, 1))
def test_an_agent_calls_a_tool_of_an_added_server_and_is_told_its_errors(
    kernel: Kernel, site: HttpServer, add: Callable[[str], None], name: str
) -> None:
    server = SERVERS[name]
    add(name)
    calls = [(f"{name}.{tool}", arguments) for tool, arguments, _ in (server.works, server.fails)]
    permissions = {"level": "sandboxed", "allow": {"tools": [f"{name}.*"]}}
    with kernel.client() as operator:
        asked = json.dumps(calls).replace("{port}", str(site.port))
        report = report_of(
            kernel, operator, "calls_mcp.py", python=sys.executable, args=[asked], permissions=permissions
        )

    assert {tool for tool, _ in calls} <= set(report["tools"])
    works, fails = report["replies"]
    assert server.works[2] in text_of(works)
    assert not works["is_error"]
    assert server.fails[2].replace("{port}", str(site.port)) in text_of(fails)
    assert fails["is_error"] == server.marked


def test_a_page_that_no_rule_allows_is_not_fetched(kernel: Kernel, add: Callable[[str], None]) -> None:
    add("fetch")
    with http_server() as other, kernel.client() as operator:
        other.answers["/tides"] = response(PAGE)
        refused = up(operator.tool_call("fetch.fetch", {"url": other.url("/tides")}))

    assert refused["is_error"]
    assert "High water" not in text_of(refused)
    assert other.connections == 0
