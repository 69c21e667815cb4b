"""A kernel with the offline provider for the frameworks' programs."""

from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.frameworks.programs import PYTHON, RULES, TOML
from tests.support.kernel import Kernel, shared
from tests.support.servers.mcp_servers import PLAIN, allow_tools


@pytest.fixture(scope="module")
def kernel(framework: None, kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    if not PYTHON.exists():
        pytest.skip(f"there is no {PYTHON}, run `make test-frameworks`: the adapters of frameworks are NOT tested")
    rules = tmp_path_factory.mktemp("offline") / "rules.toml"
    rules.write_text(RULES)
    with shared(TOML.format(rules=rules) + PLAIN) as started:
        with started.client() as operator:
            allow_tools(operator, "plain")
        yield started


@pytest.fixture(scope="module")
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as connected:
        yield connected
