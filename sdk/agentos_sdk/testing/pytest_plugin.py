"""Fixtures for pytest: ``agentos_kernel``, a real kernel, its ``cassette``, and ``agentos_fake_kernel``.

Loaded by every pytest in an environment that has this package, hence without imports of ours until they are used.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .fake_kernel import FakeKernel
    from .running_kernel import RunningKernel

MARKER = "agentos_config(file): the configuration file of agentos_kernel, relative to the test's file"
UNUSED = re.compile(r"cassette .*: \d+ of \d+ answers were not used")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("agentos").addoption(
        "--agentos-cassette",
        choices=("replay", "record", "extend", "prune"),
        default="replay",
        help="what becomes of the recorded answers of the fixture cassette; with CI set, always replay",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def agentos_kernel(request: pytest.FixtureRequest) -> Iterator[RunningKernel]:
    """A real kernel for one test: with the agents of the file in ``@pytest.mark.agentos_config``, or without any.

    Where the test has the fixture ``cassette``, the model's answers come from that file.
    """
    from agentos_sdk.testing import RunningKernel

    marker = request.node.get_closest_marker("agentos_config")
    file = Path(request.path.parent, *marker.args) if marker is not None else None
    cassette = request.getfixturevalue("cassette") if "cassette" in request.fixturenames else None
    kernel = RunningKernel(file, cassette=cassette, cassette_mode=request.config.getoption("--agentos-cassette"))
    with kernel:
        yield kernel
    for line in kernel.output.splitlines() if cassette is not None else ():
        if "cassette" in line:
            print(line)  # pytest shows it beside a failure
        if UNUSED.search(line):
            warnings.warn(line.partition("| ")[2], stacklevel=1)


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Path:
    """The file of this test's recorded answers: ``cassettes/FILE/TEST.jsonl`` beside the test's file."""
    name = re.sub(r"[^\w.-]+", "-", request.node.name)
    return Path(request.path.parent, "cassettes", request.path.stem, f"{name}.jsonl")


@pytest.fixture
def agentos_fake_kernel() -> Iterator[FakeKernel]:
    """A kernel of programmed replies for one test."""
    from agentos_sdk.testing import FakeKernel

    with FakeKernel() as kernel:
        yield kernel
