"""Kernels and connections for everybody: real ones, stopped and looked after at the end."""

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from tests.support import rounds
from tests.support.guest import guest  # noqa: F401 - a fixture
from tests.support.kernel import Kernel, running
from tests.support.wire import Wire

# The width of a table. Readline, which pytest imports, sets both; a worker inherits them.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
# Where that is set, workers compile all tests, and each of a thousand kernels its modules: twice the CPU of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
rounds.register_profiles()

SLOW_TIMEOUT = 1300  # seconds; a guest on an emulated CPU has 1,200

StartKernel = Callable[..., Kernel]
Connect = Callable[[], Wire]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``slow`` may take longer, and their files come first: the workers end at about the same time."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    if config.getoption("timeout") is None:
        for item in slow:
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))
    paths = {item.path for item in slow}
    items.sort(key=lambda item: item.path not in paths)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """A kernel without a configuration, shared by the tests of a module: leave it as you found it."""
    with running() as started:
        yield started


@pytest.fixture
def start_kernel() -> Iterator[StartKernel]:
    """``start_kernel(toml=None, env=None)``: a ready kernel of one's own, whose clean stop is asserted at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda toml=None, env=None: stack.enter_context(running(toml, env))


@pytest.fixture
def connect(kernel: Kernel) -> Iterator[Connect]:
    """``connect()``: one more raw connection to the module's kernel, closed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(kernel.connect())


@pytest.fixture
def wire(connect: Connect) -> Wire:
    """A raw connection to the module's kernel."""
    return connect()
