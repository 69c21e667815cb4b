"""``TrioAgenticLoop``, ``trio_run_task`` and ``TrioConversation``: as the blocking ones, with the Trio client."""

from __future__ import annotations

from typing import Any

from agentos_sdk.client import Kernel, connect

from .agentic_loop import options
from .engine.budget import MAX_ITERATIONS
from .engine.conversation import Exchange
from .engine.driving import Me, drive, read_transcript
from .engine.result import TaskResult
from .trio_driver import run_work


class TrioAgenticLoop:
    """As :class:`~agentos_sdk.loop.AgenticLoop`; tools may be async functions. Cancelled, it leaves no call running."""

    def __init__(self, kernel: Kernel, max_iterations: int = MAX_ITERATIONS, **more: Any) -> None:
        self._kernel = kernel
        self._options = options(max_iterations, **more)
        self._me = Me(kernel.agent_id, kernel.name)

    async def run(self, task: str, *, task_id: str | None = None) -> TaskResult:
        return await run_work(self._kernel, drive(self._options, self._me, task, task_id))

    async def resume(self, task_id: str, text: str = "", *, compact: bool = False) -> TaskResult:
        options = self._options._replace(compact=compact)
        return await run_work(self._kernel, drive(options, self._me, text, task_id, is_resumed=True))

    async def transcript(self, task_id: str) -> list[dict[str, Any]]:
        return await run_work(self._kernel, read_transcript(self._me, task_id))


async def trio_run_task(task: str, kernel: Kernel | None = None, **more: Any) -> TaskResult:
    """Work on one task; ``more`` are the arguments of :class:`TrioAgenticLoop`."""
    if kernel is not None:
        return await TrioAgenticLoop(kernel, **more).run(task)
    async with connect() as own:
        return await TrioAgenticLoop(own, **more).run(task)


class TrioConversation:
    """As :class:`~agentos_sdk.loop.Conversation`."""

    def __init__(self, kernel: Kernel, name: str = "default", **more: Any) -> None:
        self._kernel, self._exchange = kernel, Exchange(name, **more)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self._exchange.messages

    async def say(self, text: str) -> str:
        return await run_work(self._kernel, self._exchange.say(text))

    async def load(self) -> None:
        await run_work(self._kernel, self._exchange.load())

    async def clear(self) -> None:
        await run_work(self._kernel, self._exchange.clear())
