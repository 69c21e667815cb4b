"""Drivers of a call's steps: at once while input is read, in a task, or by the callback that tells a result."""

# The steps of a call (steps.py) are one coroutine. Most calls never wait in it, so they need no task: one ``send`` runs
# the coroutine to its end. A task costs more than a short call, so one that waits only for its turn in a batch has none
# either: it yields what begins the batch's work, and is continued when the result is told.
# What must stay true: a coroutine that is driven without a task awaits nothing of Trio's, and each one is driven to its
# end, for it records the outcome there. docs/decisions/performance/0059 has the figures.

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

import trio
from outcome import Error, Outcome

from agentos_sdk.errors import Cancelled

T = TypeVar("T")
Result = Outcome[Any]
Done = Callable[[Result], object]
Withdraw = Callable[[], bool]
Begin = Callable[[Done], Withdraw]
"""Begins an act that passes its result to ``Done`` later. The returned function withdraws the act.

That function returns False if it is too late; otherwise no result comes.
"""

WITHDRAWN = "withdrawn by its caller"


def at_once(steps: Coroutine[Any, Any, T]) -> T:
    """The result of steps that wait for nothing."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    steps.close()
    raise RuntimeError("a call that is answered at once waits")


@coroutine
def suspend(begin: Begin) -> Generator[Begin, Any, Any]:
    """Have :func:`by_callback` begin an act; returns its result."""
    return (yield begin)


def by_callback(steps: Coroutine[Any, Any, T], answer: Callable[[T], object]) -> T | Callable[[], object]:
    """The result of steps that have ended, or a function that withdraws them; then ``answer`` gets the result later."""
    try:
        begin: Begin = steps.send(None)

        def resume(told: Result) -> None:
            try:
                told.send(steps)  # type: ignore[arg-type] # a coroutine is sent values like a generator
            except StopIteration as end:
                answer(end.value)

        def withdraw() -> None:
            if drop():
                resume(Error(Cancelled(WITHDRAWN)))

        try:
            drop = begin(resume)
        except Exception as error:
            steps.throw(error)
    except StopIteration as end:
        result: T = end.value
        return result
    return withdraw


async def in_turn(steps: Coroutine[Any, Any, T]) -> T:
    """The result of steps that :func:`by_callback` runs; this task waits for it, and withdraws them if cancelled."""
    answers, answered = list[T](), trio.Event()

    def take(answer: T) -> None:
        answers.append(answer)
        answered.set()

    begun = by_callback(steps, take)
    if not callable(begun):
        return begun
    try:
        await answered.wait()
    except trio.Cancelled:
        begun()
        raise
    return answers[0]


async def in_task(begin: Begin) -> object:
    """Begin an act, and wait for its result in this task."""
    drop = begin(partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))

    def abort(_: object) -> trio.lowlevel.Abort:
        return trio.lowlevel.Abort.SUCCEEDED if drop() else trio.lowlevel.Abort.FAILED

    return await trio.lowlevel.wait_task_rescheduled(abort)
