"""Performs the effects of the loop with the Trio client."""

from __future__ import annotations

import inspect
import math
from collections import deque
from functools import partial
from typing import Any, TypeVar

import trio

from agentos_sdk.client import Kernel, Pending
from agentos_sdk.encoding import codec

from .engine.effects import Call, Effect, NextPiece, OpenStream, Run, Sleep, Together, TookTooLong, Work, drive

T = TypeVar("T")


class PendingStream:
    """A streamed call whose pieces are JSON values."""

    def __init__(self, kernel: Kernel, number: int, pending: Pending) -> None:
        self._kernel, self._number, self._pending = kernel, number, pending

    async def next(self) -> tuple[bool, Any]:
        while True:
            if (chunk := self._pending.take()) is not None:
                return False, codec.parse(chunk, codec.REPLY_DEPTH)
            if self._pending.reply is not None:
                return True, codec.parse(self._pending.reply, codec.REPLY_DEPTH)
            await self._kernel._change(self._pending)

    def close(self) -> None:
        self._kernel._end(self._number, self._pending)


async def run_work(kernel: Kernel, work: Work[T]) -> T:
    """Run work to its end; if this is cancelled, the work is closed, and its calls are withdrawn."""
    streams: list[PendingStream] = []
    try:
        return await drive(work, lambda effect: _perform(kernel, effect, streams))
    finally:
        for stream in streams:
            stream.close()


async def _perform(kernel: Kernel, effect: Effect, streams: list[PendingStream]) -> Any:
    match effect:
        case Call():
            given = {name: value for name, value in effect.fields.items() if value is not None}
            return codec.parse(await kernel.exchange(effect.op, codec.encode(given)), codec.REPLY_DEPTH)
        case OpenStream():
            number, pending = await kernel._begin(effect.op, codec.encode({**effect.fields, "stream": True}), deque())
            streams.append(stream := PendingStream(kernel, number, pending))
            return stream
        case NextPiece():
            return await effect.stream.next()
        case Run():
            call, seconds = partial(effect.function, **effect.arguments), effect.timeout
            with trio.move_on_after(math.inf if seconds is None else seconds):
                if inspect.iscoroutinefunction(effect.function):
                    return await call()
                return await trio.to_thread.run_sync(call, abandon_on_cancel=seconds is not None)
            raise TookTooLong
        case Sleep():
            await trio.sleep(effect.seconds)
            return None
        case Together():
            return await _run_together(kernel, effect.works)


async def _run_together(kernel: Kernel, works: Any) -> list[Any]:
    results: list[Any] = [None] * len(works)
    errors: list[Exception] = []

    async def run(place: int, work: Work[Any]) -> None:
        try:
            results[place] = await run_work(kernel, work)
        except Exception as error:  # raised below: the nursery would wrap it in a group
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for place, work in enumerate(works):
            nursery.start_soon(run, place, work)
    if errors:
        raise errors[0]
    return results
