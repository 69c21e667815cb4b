"""What may stand between many agents and one provider; each is opened for a provider and then asked.

All but ours run in the load's own process, with OpenAI's package; ours is a kernel in a process of its own, which uses
the same package, and each agent has a connection of its own to it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from attrs import define, field, frozen

from agentos_sdk.client import Kernel, connect
from agentos_sdk.errors import from_reply
from agentos_sdk.opcodes import Op
from tests.support.clients import openai

from .loads import Agent, Request

ATTEMPTS = 3  # of the naive; as many as OpenAI's package makes
PAUSE = 0.5  # seconds between the naive's attempts
MODEL = "simulated"

Ask = Callable[[Request], Awaitable[None]]


@frozen
class Target:
    """Where a provider is, how many it answers at once, the agents, and a kernel in front of it, if there is one."""

    url: str
    slots: int
    agents: Sequence[Agent]
    kernel: Path | None = None


Strategy = Callable[[Target], AbstractAsyncContextManager[Ask]]


async def complete(client: openai.AsyncOpenAI, request: Request) -> None:
    """Ask and read the answer to its end."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": request.asked.text()}],
        stream=True,
        stream_options={"include_usage": True},
    )
    async with stream:
        async for _ in stream:
            pass


def client(target: Target, retries: int = 0) -> openai.AsyncOpenAI:
    plain = openai.DefaultAsyncHttpxClient(verify=False)  # there is no TLS here, and authorities take 30 ms to be read
    return openai.AsyncOpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=retries, http_client=plain)


@asynccontextmanager
async def clients(target: Target, retries: int = 0) -> AsyncIterator[Mapping[str, openai.AsyncOpenAI]]:
    """One for each agent: as programs of their own they would not share connections."""
    each = {agent.name: client(target, retries) for agent in target.agents}
    try:
        yield each
    finally:
        for one in each.values():
            await one.close()


@asynccontextmanager
async def naive(target: Target) -> AsyncIterator[Ask]:
    """Each agent by itself; it repeats failed requests after a fixed pause."""
    async with clients(target) as each:

        async def ask(request: Request) -> None:
            for _ in range(ATTEMPTS - 1):
                try:
                    return await complete(each[request.agent], request)
                except Exception:  # whatever it was: that is what makes it naive
                    await trio.sleep(PAUSE)
            return await complete(each[request.agent], request)

        yield ask


@asynccontextmanager
async def package(target: Target) -> AsyncIterator[Ask]:
    """Each agent by itself, with the retries that OpenAI's package makes unless told otherwise."""
    async with clients(target, retries=2) as each:

        async def ask(request: Request) -> None:
            await complete(each[request.agent], request)

        yield ask


@define(eq=False)
class Waiting:
    request: Request
    done: trio.Event = field(factory=trio.Event)
    error: Exception | None = None


class Rule(Protocol):
    """Which request is next; ``take`` is called only while something waits."""

    def put(self, waiting: Waiting) -> None: ...
    def take(self) -> Waiting: ...


class FirstCome:
    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()

    def put(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)

    def take(self) -> Waiting:
        return self._waiting.popleft()


class RoundRobin:
    """One request of each agent in turn."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Waiting]] = {}  # of those who have something waiting, in the order of their turns

    def put(self, waiting: Waiting) -> None:
        self._lines.setdefault(waiting.request.agent, deque()).append(waiting)

    def take(self) -> Waiting:
        agent = next(iter(self._lines))
        line = self._lines.pop(agent)
        waiting = line.popleft()
        if line:
            self._lines[agent] = line
        return waiting


@asynccontextmanager
async def in_line(rule: Callable[[], Rule], target: Target) -> AsyncIterator[Ask]:
    """A worker for each slot in front of the provider, and a rule that chooses."""
    waiting, much = rule(), trio.Semaphore(0)

    async def ask(request: Request) -> None:
        mine = Waiting(request)
        waiting.put(mine)
        much.release()
        await mine.done.wait()
        if mine.error is not None:
            raise mine.error

    async def work(one: openai.AsyncOpenAI) -> None:
        while True:
            await much.acquire()
            chosen = waiting.take()
            try:
                await complete(one, chosen.request)
            except Exception as error:
                chosen.error = error
            chosen.done.set()

    async with client(target) as one, trio.open_nursery() as nursery:
        for _ in range(target.slots):
            nursery.start_soon(work, one)
        yield ask
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def ours(target: Target) -> AsyncIterator[Ask]:
    """A kernel; each agent is a caller of its own."""
    path = str(target.kernel)

    async def hold(task_status: trio.TaskStatus[Kernel]) -> None:
        async with connect(path) as kernel:
            task_status.started(kernel)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        kernels = {agent.name: await nursery.start(hold) for agent in target.agents}

        async def ask(request: Request) -> None:
            body = json.dumps({"prompt": request.asked.text()}).encode()
            reply = json.loads(await kernels[request.agent].exchange(Op.THINK, body))
            if not reply["success"]:
                raise from_reply(reply)

        yield ask
        nursery.cancel_scope.cancel()


STRATEGIES: dict[str, Strategy] = {
    "direct, naive retry": naive,
    "direct, the package's retry": package,
    "first come, first served": partial(in_line, FirstCome),
    "round-robin by request": partial(in_line, RoundRobin),
    "kernel": ours,
}
