from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    """An operator of the module's kernel; the agents that are left when the test ends are ended."""
    with kernel.client() as connected:
        yield connected
        for agent in connected.list_agents():
            if agent["state"] not in ("exited", "failed"):
                connected.kill(agent_id=agent["id"], grace=0)
