"""One spawner for the tests of a module; hosts that can't make a sandbox skip, unless they must."""

import os
from collections.abc import Iterator

import pytest
import trio

from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.jail import start_spawner


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    """A running spawner, on a host where a root of one's own can be made."""
    spawner = start_spawner()
    try:
        found = trio.run(probe.probe_layers, spawner, probe.read_host())
        if not found["root"].works and "AGENTOS_MUST_SANDBOX" not in os.environ:
            pytest.skip(f"no sandbox on this host: {found['root'].reason} ({found['root'].remedy})")
        yield spawner
    finally:
        spawner.close()
