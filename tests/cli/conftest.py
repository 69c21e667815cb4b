import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, killing_new_agents
from tests.support.runs.forked import Commands

Result = subprocess.CompletedProcess[str]
Agentos = Callable[..., Result]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a program ``agentos`` that ``subprocess`` starts: forked, as the commands of other tests are."""
    with closing(Commands(tmp_path_factory.mktemp("commands"))) as commands:
        yield str(commands.directory / "agentos")


@pytest.fixture
def agentos(kernel: Kernel) -> Iterator[Agentos]:
    """``agentos("ps", "--json")``: the command, run in the kernel's place; agents that the test leaves are killed."""

    def run(*arguments: str, **env: str) -> Result:
        given = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, **env}
        return run_agentos(arguments, kernel.place, given)

    with killing_new_agents(kernel):
        yield run
