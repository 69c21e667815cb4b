import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, killing_new_agents
from tests.system.sites import Sites, running_sites


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    """An operator of the module's kernel; the agents that the test leaves are killed."""
    with killing_new_agents(kernel), kernel.client() as connected:
        yield connected


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    """Servers for programs in filtered networks."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with running_sites(Path(directory)) as sites:
            yield sites
