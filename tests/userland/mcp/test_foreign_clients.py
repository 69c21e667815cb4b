"""The newest SDK of MCP for TypeScript, and fastmcp, as clients over HTTP; ``make agents`` sets them up."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.kernel import Kernel, descendants, shared, until
from tests.support.wire import PATIENCE
from tests.userland.mcp.test_eras import words_of
from tests.userland.mcp.transports.http_serving import make_client, served_by_command

PLACE = Path(sys.prefix, "mcp-clients")
HERE = Path(__file__)
CLIENTS = {
    "typescript": ["node", str(HERE.with_name("calls_tools.mjs")), str(PLACE)],
    "fastmcp": [f"{PLACE}/bin/python", str(HERE.parents[2] / "frameworks/inside/uses_fastmcp.py")],
}


@pytest.fixture(scope="module")
def kernel(framework: None, kernels: None) -> Iterator[Kernel]:
    if not (PLACE / "ready").exists():
        pytest.skip(f"there is no {PLACE}, run `make agents`: the SDK for TypeScript and fastmcp are NOT tested")
    with shared() as started:
        yield started


@pytest.fixture
def url(kernel: Kernel) -> Iterator[str]:
    with served_by_command(kernel) as found:
        yield found


@pytest.mark.parametrize("words", CLIENTS.values(), ids=CLIENTS)
def test_a_client_lists_our_tools_and_calls_one(kernel: Kernel, url: str, words: Sequence[str]) -> None:
    from agentos.userland.mcp.tools import TOOLS

    token = make_client(kernel.state_dir, "foreign", level="unrestricted")
    asked = [*words, url, token, "echo hello"]

    done = subprocess.run(asked, capture_output=True, text=True, timeout=4 * PATIENCE, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[tool.name for tool in TOOLS], "hello\n"]


@pytest.mark.parametrize("words", CLIENTS.values(), ids=CLIENTS)
def test_a_client_that_is_killed_ends_its_command(kernel: Kernel, url: str, words: Sequence[str]) -> None:
    def runs() -> bool:
        return any("7721" in words_of(one.pid) for one in descendants(kernel.pid))

    token = make_client(kernel.state_dir, "killed")
    client = subprocess.Popen([*words, url, token, "sleep 7721"])
    until(lambda: runs() or client.poll() is not None, "the command runs")
    assert client.poll() is None

    client.kill()
    client.wait()

    until(lambda: not runs(), "its command has ended")
