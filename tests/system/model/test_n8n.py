"""The packages that n8n's nodes are made of: its model at the endpoint, its MCP client at `agentos mcp --http`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.offline import answering
from tests.support.servers.npm import need_packages
from tests.support.wire import PATIENCE
from tests.system.agents import info, lines, up
from tests.userland.mcp.transports.http_serving import make_client, serving_http

PROGRAMS = Path(__file__).parents[1] / "n8n"
PACKAGES = ("@langchain/core@1", "@langchain/openai@1", "@modelcontextprotocol/client@2")
RULES = r"""
[[rule]]
match = 'weather in (\w+)'
tool_calls = [{ name = "weather", arguments = { place = '\1' } }]

[[rule]]
tool = "weather"
match = '.*'
reply = 'It says: \g<0>.'

[[rule]]
match = 'hello'
reply = 'one two three'
"""


@pytest.fixture(scope="module")
def packages(framework: None) -> Path:
    """A directory with n8n's packages and our two programs."""
    place = need_packages("n8n", *PACKAGES)
    for program in PROGRAMS.glob("*.mjs"):
        shutil.copy(program, place)
    return place


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with answering(RULES, 'model = "offline"\nopenai_endpoint = true') as kernel:
        yield kernel


def test_its_model_asks_in_a_jail_and_calls_tools(kernel: Kernel, packages: Path) -> None:
    with AgentOSClient(kernel.socket) as client:
        node = ["node", "/agent/model.mjs"]
        up(client.spawn("n8n", command=node, code=str(packages), restart="temporary", limits={"memory": "1G"}))
        until(lambda: info(client, "n8n")["state"] not in ("starting", "running"), "n8n has ended")
        *_, last = lines(client, "n8n", "stdout") or [""]
        errors = lines(client, "n8n", "stderr")

    assert last.startswith("report "), errors
    said = json.loads(last.removeprefix("report "))
    assert said == {"tool": "weather", "answer": "It says: rain in Paris.", "streamed": "one two three"}


async def test_its_mcp_client_has_the_rights_of_its_token(kernel: Kernel, packages: Path) -> None:
    token = make_client(kernel.state_dir, "n8n")
    async with serving_http(kernel.socket, kernel.state_dir) as url:
        with trio.fail_after(PATIENCE):
            node = ["node", str(packages / "tools.mjs"), url, token]
            done = await trio.run_process(node, capture_stdout=True, capture_stderr=True)

    said = json.loads(done.stdout)
    assert {"agentos_exec", "agentos_read", "agentos_think"} <= set(said["tools"])
    assert said["done"]["structuredContent"]["stdout"] == "hello from a jail\n"
    assert said["denied"]["isError"]
    assert "permission_denied" in said["denied"]["content"][0]["text"]
