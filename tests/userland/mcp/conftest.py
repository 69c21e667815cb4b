"""The cells of the table of eras: each transport with each era of the protocol."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel import Kernel
from tests.userland.mcp.serving import ERAS, TRANSPORTS, Cell, Transport


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> Transport:
    return TRANSPORTS[request.param]


@pytest.fixture(params=list(ERAS), ids=list(ERAS.values()))
def cell(request: pytest.FixtureRequest, transport: Transport, kernel: Kernel) -> Cell:
    return Cell(transport, request.param, kernel)


@pytest.fixture(params=list(ERAS), ids=list(ERAS.values()))
def near(request: pytest.FixtureRequest, kernel: Kernel) -> Cell:
    """For what doesn't depend on the transport."""
    return Cell(TRANSPORTS["memory"], request.param, kernel)


@pytest.fixture
def modern(kernel: Kernel) -> Cell:
    """Only the modern era has round trips."""
    return Cell(TRANSPORTS["memory"], "auto", kernel)


@pytest.fixture
def place(kernel: Kernel) -> Iterator[Path]:
    """A directory in which each client of these tests may write if a person allows it."""
    directory = kernel.place / "asked"
    directory.mkdir(exist_ok=True)
    yield directory
    for file in directory.iterdir():
        file.unlink()
    with kernel.client() as operator:
        for left in operator.approvals()["pending"]:
            operator.decide(left["id"], False)
