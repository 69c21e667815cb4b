"""Functions that report each ended call to an observer."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from .call import Call
from .caller import Caller
from .ports import MustAsk

Observe = Callable[[Caller, int, Any, object, int], None]
"""Takes caller, opcode, request, reply or error, and the call's start in nanoseconds since the epoch.

The request is None if it isn't read, because all calls of this opcode are refused. An observer must not wait or raise.
"""


def observe_answer(
    answer: Callable[[Caller, Any], Any], op: int, observe: Observe, in_order: bool
) -> Callable[[Caller, Any], Any]:
    """Wrap a function that answers without a task, or the ``async def`` of a call that is ``in_order``."""

    def observed(caller: Caller, request: Any) -> Any:
        began = time.time_ns()
        try:
            reply = answer(caller, request)
        except MustAsk:
            raise
        except Exception as error:
            observe(caller, op, request, error, began)
            raise
        observe(caller, op, request, reply, began)
        return reply

    async def observed_in_order(caller: Caller, request: Any) -> Any:
        began = time.time_ns()
        try:
            reply = await answer(caller, request)
        except MustAsk:
            raise
        except BaseException as error:
            observe(caller, op, request, error, began)
            raise
        observe(caller, op, request, reply, began)
        return reply

    return observed_in_order if in_order else observed


def observe_perform(
    perform: Callable[[Call, Any], Awaitable[object]], op: int, observe: Observe
) -> Callable[[Call, Any], Awaitable[object]]:
    """Wrap a function that answers in a task."""

    async def observed(call: Call, request: Any) -> object:
        began = time.time_ns()
        try:
            reply = await perform(call, request)
        except BaseException as error:
            observe(call.caller, op, request, error, began)
            raise
        observe(call.caller, op, request, reply, began)
        return reply

    return observed
