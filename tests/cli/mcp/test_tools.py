"""``agentos tools``: the tools of MCP servers, and what an agent's rules decide about them."""

import json
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel, shared
from tests.support.servers.mcp_servers import EXAMPLE, allow_tools, using

BROKEN = '[mcp.servers.broken]\ncommand = ["python3", "-c", "raise SystemExit(7)"]\n'


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(f"{EXAMPLE}\n{BROKEN}") as started:
        with started.client() as operator:
            allow_tools(operator, "example")
        yield started


def test_tools_are_listed_with_their_descriptions_and_what_is_missing(agentos: Agentos) -> None:
    shown = agentos("tools")

    assert shown.returncode == 0
    assert shown.stdout.splitlines()[:3] == [
        "TOOL              DESCRIPTION",
        "example.echo      Say it again",
        "example.weather   The weather of a city",
    ]
    assert shown.stderr.startswith("broken: the MCP server broken ")


def test_as_an_agent_says_what_its_rules_decide(kernel: Kernel, agentos: Agentos) -> None:
    with kernel.client() as operator, using(kernel, operator, "some", "example.echo", ask={"tools": ["example.image"]}):
        shown = agentos("tools", "example", "--as", "some")
        told = json.loads(agentos("tools", "example", "--as", "some", "--json").stdout)["decisions"]

    rows = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert " allowed " in rows["example.echo"]
    assert " asks a person " in rows["example.image"]
    assert " denied " in rows["example.die"]
    assert (told["example.echo"], told["example.image"], told["example.die"]) == ("allow", "ask", "deny")


def test_an_unknown_server_is_named(agentos: Agentos) -> None:
    shown = agentos("tools", "exampel")

    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith("agentos: there is no MCP server 'exampel', did you mean example?")
