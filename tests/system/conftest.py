import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, killing_new_agents, shared, until, waiting
from tests.system.agents import up
from tests.system.sites import Sites, running_sites

Declare = Callable[[str], Kernel]


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    """An operator of the module's kernel; the agents that the test leaves are killed."""
    with killing_new_agents(kernel), kernel.client() as connected:
        yield connected


@pytest.fixture(scope="module")
def reloaded(kernels: None) -> Iterator[Kernel]:
    """The kernel of ``declare``, with an empty configuration."""
    with shared("") as started:
        yield started


@pytest.fixture
def declare(reloaded: Kernel) -> Iterator[Declare]:
    """``declare(toml)``: a kernel of the module with these agents, whose first starts have come out.

    They are declared by a reload, which costs a tenth of a kernel, and removed when the test ends, with the kernel's
    lines.
    """

    def reload(toml: str) -> Kernel:
        (reloaded.place / "agentos.toml").write_text(toml)
        with reloaded.client() as client:
            former = {agent["id"] for agent in client.list_agents(all=True)}

            def new() -> list[dict[str, Any]]:
                return [agent for agent in client.list_agents(all=True) if agent["id"] not in former]

            up(client.reload())
            until(lambda: not waiting(new()), "each agent's first start has come out", show=new)
        return reloaded

    with killing_new_agents(reloaded):
        yield reload
    reload("")
    reloaded.forget_lines()


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    """Servers for programs in filtered networks."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with running_sites(Path(directory)) as sites:
            yield sites
