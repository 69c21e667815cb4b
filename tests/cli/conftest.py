import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, killing_new_agents

Result = subprocess.CompletedProcess[str]
Agentos = Callable[..., Result]


@pytest.fixture
def agentos(kernel: Kernel) -> Iterator[Agentos]:
    """``agentos("ps", "--json")``: the command, run in the kernel's place; agents that the test leaves are killed."""

    def run(*arguments: str, **env: str) -> Result:
        given = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, **env}
        return run_agentos(arguments, kernel.place, given)

    with killing_new_agents(kernel):
        yield run
