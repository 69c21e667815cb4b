"""What every test of a client that misbehaves ends with; a poller that runs."""

from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from agentos.kernel.wire.poller import Poller
from tests.support.kernel import Kernel, until
from tests.support.wire import GET_AUDIT_LOG

SLACK = 24 << 20  # bytes; what an allocator may keep of what it was once given


@pytest.fixture
def unharmed(kernel: Kernel) -> Iterator[None]:
    """After the test the kernel answers at once, and holds no more files, connections or memory than before."""
    assert kernel.answers()
    with kernel.connect() as wire:  # SQLite keeps what reads the log open as long as the log is
        assert wire.call(GET_AUDIT_LOG)["success"]
    until(lambda: kernel.connections == 0, "connections of the test before are gone")
    files, memory = kernel.open_files, kernel.rss
    yield
    assert kernel.answers()
    until(lambda: kernel.connections == 0, "its connections are closed")
    until(lambda: kernel.open_files <= files, f"its files are closed: {files} before")
    until(lambda: kernel.rss <= memory + SLACK, f"its memory is given back: {memory >> 10} KiB before")
    assert " bug " not in kernel.said


@pytest.fixture
async def poller() -> AsyncIterator[Poller]:
    """A poller that runs until the test ends."""
    poller = Poller()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        yield poller
        nursery.cancel_scope.cancel()
