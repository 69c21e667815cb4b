import subprocess
from collections.abc import Callable, Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment

Result = subprocess.CompletedProcess[str]
Agentos = Callable[..., Result]


@pytest.fixture
def agentos(kernel: Kernel) -> Iterator[Agentos]:
    """``agentos("ps", "--json")``: the command, run in the kernel's place; the agents that are left are ended."""

    def run(*arguments: str, **env: str) -> Result:
        given = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, **env}
        return run_agentos(arguments, kernel.place, given)

    yield run
    with AgentOSClient(kernel.socket) as client:
        for agent in client.list_agents():
            if agent["state"] not in ("exited", "failed"):
                client.kill(agent_id=agent["id"], grace=0)
