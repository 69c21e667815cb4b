"""Performs the effects of the loop with the blocking client."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from agentos_sdk.blocking import AgentOSClient
from agentos_sdk.encoding.chunks import stream_call
from agentos_sdk.errors import CallError, checked
from agentos_sdk.opcodes import Op

from .engine.driving import Me
from .engine.effects import Call, Effect, NextPiece, OpenStream, Run, Sleep, Together, TookTooLong, Work, drive

T = TypeVar("T")


class BlockingDriver:
    """Runs work to its end in this thread; what is done together has a thread and a connection each."""

    def __init__(self, client: AgentOSClient) -> None:
        self.client = client
        self._streams: list[Any] = []

    def run(self, work: Work[T]) -> T:
        """The result of ``work``, which is closed if this is interrupted."""

        async def perform(effect: Effect) -> Any:
            return self._perform(effect)

        try:
            drive(work, perform).send(None)  # which awaits nothing, and so runs to its end
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            while self._streams:
                self._streams.pop().close()
        raise AssertionError("a function that is performed here awaits nothing")

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Call():
                return self.client.request(effect.op, effect.fields, effect.wait)
            case OpenStream():
                fields = {**effect.fields, "stream": True}
                self._streams.append(stream_call(self.client.socket_path, effect.op, fields, self.client._hellos))
                return self._streams[-1]
            case NextPiece():
                try:
                    op, body = next(effect.stream)
                except CallError as failed:
                    return True, {"success": False, "code": failed.code, "error": str(failed), **failed.details}
                return op != Op.CHUNK, body
            case Run():
                if inspect.iscoroutinefunction(effect.function):
                    raise TypeError("an async function needs TrioAgenticLoop")
                call = partial(effect.function, **effect.arguments)
                return call() if effect.timeout is None else call_within(effect.timeout, call)
            case Sleep():
                time.sleep(effect.seconds)
                return None
            case Together():
                return self._run_together(effect.works)

    def _run_together(self, works: Any) -> list[Any]:
        results: list[Any] = [None] * len(works)
        errors: list[Exception] = []

        def run(place: int, work: Work[Any]) -> None:
            try:
                with self.another_client() as client:
                    results[place] = BlockingDriver(client).run(work)
            except Exception as error:  # raised below, in the thread that waits
                errors.append(error)

        threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def me(self) -> Me:
        """The caller; raises the kernel's ``CallError``."""
        reply = checked(self.client.hello())
        return Me(reply["agent_id"], reply["name"])

    def another_client(self) -> AgentOSClient:
        """A further connection with the same rights."""
        client = AgentOSClient(self.client.socket_path, self.client.timeout)
        client._hellos = list(self.client._hellos)
        return client


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """What ``function`` returns in a thread of its own; :class:`TookTooLong` if that takes longer."""
    results: list[T] = []
    errors: list[Exception | SystemExit] = []

    def run() -> None:
        try:
            results.append(function())
        except (Exception, SystemExit) as error:  # raised below, in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TookTooLong
    return results[0]
