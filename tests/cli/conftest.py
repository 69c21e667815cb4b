import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, environment
from tests.support.wire import PATIENCE

Result = subprocess.CompletedProcess[str]
Agentos = Callable[..., Result]


@pytest.fixture
def agentos(kernel: Kernel) -> Iterator[Agentos]:
    """``agentos("ps", "--json")``: the command, run in the kernel's place; the agents that are left are ended."""

    def run(*arguments: str, **env: str) -> Result:
        given = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, **env}
        return subprocess.run(
            [sys.executable, "-m", "agentos", *arguments],
            cwd=kernel.place,
            env=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    yield run
    with AgentOSClient(kernel.socket) as client:
        for agent in client.list_agents():
            if agent["state"] not in ("exited", "failed"):
                client.kill(agent_id=agent["id"], grace=0)
