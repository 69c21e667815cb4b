import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel
from tests.system.sites import Sites, running_sites


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    """An operator of the module's kernel; the agents that are left when the test ends are ended."""
    with kernel.client() as connected:
        yield connected
        for agent in connected.list_agents():
            if agent["state"] not in ("exited", "failed"):
                connected.kill(agent_id=agent["id"], grace=0)


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    """Servers for programs in filtered networks."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with running_sites(Path(directory)) as sites:
            yield sites
