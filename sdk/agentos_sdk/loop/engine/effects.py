"""What the loop asks for: it is written once, as generators that yield these, for the blocking and the Trio client.

A driver performs what is yielded and sends back the result. Nothing in the loop itself waits, reads or calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

Reply: TypeAlias = dict[str, Any]


class Call(NamedTuple):
    """A system call; sends back its reply, a failed one too. ``wait`` is how many seconds it may take by itself."""

    op: int
    fields: Mapping[str, Any]
    wait: float | None = None


class OpenStream(NamedTuple):
    """A system call with a streamed reply; sends back a handle for :class:`NextPiece`.

    The driver closes the stream when it has ended, or when the work is abandoned: then the call is cancelled.
    """

    op: int
    fields: Mapping[str, Any]


class NextPiece(NamedTuple):
    """Wait for a stream; sends back ``(is_last, body)``: a CHUNK's body, or at the end the reply."""

    stream: Any


class TookTooLong(Exception):
    """A function didn't return in time."""


class Run(NamedTuple):
    """A Python function that may block, such as a tool of the user's; sends back what it returns, or raises.

    After ``timeout`` seconds it raises :class:`TookTooLong`; one that is not async then still runs, in its thread.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any] = {}
    timeout: float | None = None


class Sleep(NamedTuple):
    seconds: float


class Together(NamedTuple):
    """Work to be done at the same time; sends back the results, in order."""

    works: Sequence[Work[Any]]


Effect: TypeAlias = "Call | OpenStream | NextPiece | Run | Sleep | Together"
T = TypeVar("T")
Work: TypeAlias = Generator[Effect, Any, T]


async def drive(work: Work[T], perform: Callable[[Effect], Awaitable[Any]]) -> T:
    """The result of ``work``, of which ``perform`` performs each effect; it is closed if this is cancelled."""
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                effect = work.throw(error) if error is not None else work.send(value)
            except StopIteration as end:
                result: T = end.value
                return result
            value = error = None
            try:
                value = await perform(effect)
            except Exception as raised:
                error = raised
    finally:
        work.close()
