"""A server that speaks a vendor's wire format, for kernels in processes of their own."""

import contextlib
import threading
from collections.abc import Iterator
from types import ModuleType

import trio

from tests.llm.vendors import openai_wire
from tests.llm.vendors.server import Vendor, serve
from tests.support.wire import PATIENCE


@contextlib.contextmanager
def vendor(wire: ModuleType = openai_wire) -> Iterator[Vendor]:
    """It runs in a thread: set what it is to answer before it is asked, read what it was asked afterwards."""
    ready, box = threading.Event(), list[tuple[Vendor, trio.lowlevel.TrioToken, trio.CancelScope]]()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            met: Vendor = await nursery.start(serve, wire)
            box.append((met, trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(run,), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE), "the server for the vendor is up"
    met, token, scope = box[0]
    try:
        yield met
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        thread.join(PATIENCE)
