"""Fixtures for pytest: ``agentos_kernel``, a real kernel, and ``agentos_fake_kernel``.

Loaded by every pytest in an environment that has this package, hence without imports of ours until they are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .fake_kernel import FakeKernel
    from .running_kernel import RunningKernel

MARKER = "agentos_config(file): the configuration file of agentos_kernel, relative to the test's file"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def agentos_kernel(request: pytest.FixtureRequest) -> Iterator[RunningKernel]:
    """A real kernel for one test: with the agents of the file in ``@pytest.mark.agentos_config``, or without any."""
    from agentos_sdk.testing import RunningKernel

    marker = request.node.get_closest_marker("agentos_config")
    file = Path(request.path.parent, *marker.args) if marker is not None else None
    with RunningKernel(file) as kernel:
        yield kernel


@pytest.fixture
def agentos_fake_kernel() -> Iterator[FakeKernel]:
    """A kernel of programmed replies for one test."""
    from agentos_sdk.testing import FakeKernel

    with FakeKernel() as kernel:
        yield kernel
