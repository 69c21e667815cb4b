"""Tasks that outlive the block they serve by what is left to do, such as writers of queued data."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def run_and_finish(
    serve: Callable[[], Awaitable[None]], close: Callable[[BaseException | None], object]
) -> AsyncIterator[None]:
    """Run ``serve`` during the block; ``close`` is then called with what ended the block, and has to end ``serve``.

    The block is left when ``serve`` has ended, also if it was cancelled. What it raised is raised as it was.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            yield
        except BaseException as error:  # noqa: ASYNC103, ASYNC104 - it is raised below
            failure = error
        close(failure)
    if failure is not None:
        raise failure  # outside the nursery, which would wrap it in a group
