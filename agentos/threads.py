"""Functions in worker threads, whose arguments are freed when the call ends."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack, cast

import trio

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def run_in_thread(
    function: Callable[[Unpack[Args]], T], *args: *Args, limiter: trio.CapacityLimiter | None = None
) -> T:
    """``trio.to_thread.run_sync`` for arguments that may be large: they are freed also if ``function`` raises.

    Frames of Trio's worker thread hold what the function raised, and its traceback holds those frames: all of it, and
    the variables of all frames above, would stay until the garbage collector runs, which an idle kernel seldom does.
    """
    raised: list[Exception] = []

    def call() -> T | None:
        try:
            return function(*args)
        except Exception as error:
            raised.append(error)
            return None

    result = await trio.to_thread.run_sync(call, limiter=limiter)
    if raised:
        raise raised.pop()
    return cast(T, result)
