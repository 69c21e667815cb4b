"""Kernels and connections for everybody: real ones, stopped and looked after at the end."""

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import mounts
from tests.support.guest import guest  # noqa: F401 - a fixture
from tests.support.kernel import Kernel, running, shared
from tests.support.runs import costs, enter, progress, rounds
from tests.support.wire import Wire

# The width of a table. Readline, which pytest imports, sets both; a worker inherits them.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
# Where that is set, workers compile all tests, and each of a thousand kernels its modules: twice the CPU of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A shell's background jobs ignore it, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
mounts.enter_namespace()
rounds.register_profiles()
gc.disable()  # until the tests are collected: nearly all that test modules make stays, and a third of the CPU is saved

OwnKernel = Callable[..., Kernel]
Connect = Callable[[], Wire]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    progress.register(config)
    rounds.fix_examples()  # the option that chooses the profile has been read


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    costs.mark(items, with_timeout=config.getoption("timeout") is None)
    costs.check_places(items)
    yield  # pytest selects by marks, and may shuffle
    costs.put_slow_files_first(items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return costs.has_none_wanted(collection_path, config.option.markexpr) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    costs.may_start_kernels = "kernels" in getattr(item, "fixturenames", ())
    return (yield)


@pytest.fixture
def entered(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test's ``tmp_path``, where all users may enter it."""
    enter.let_in(tmp_path, tmp_path_factory.getbasetemp())
    return tmp_path


@pytest.fixture(scope="session")
def long() -> None:
    """For a test that takes more than ten seconds."""


@pytest.fixture(scope="session")
def both_cores() -> None:
    """For a test that needs the whole machine: it runs in one process, after the others."""


@pytest.fixture(scope="session")
def framework() -> None:
    """For a test that runs programs of others, from an environment of their own."""


@pytest.fixture(scope="session")
def executed_page() -> None:
    """For a test that does what a page of the documentation shows."""


@pytest.fixture(scope="session")
def kernels() -> None:
    """For a test or fixture that starts kernels by ``running`` or ``Kernel``."""


def pytest_collection_finish() -> None:
    """No later collection goes through what the test modules made."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    """A kernel without a configuration, shared by the tests of a module: leave it as you found it."""
    with shared() as started:
        yield started


@pytest.fixture
def own_kernel(kernels: None) -> Iterator[OwnKernel]:
    """``own_kernel(toml=None, env=None)``: a ready kernel of the test's own, which must stop cleanly."""
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
