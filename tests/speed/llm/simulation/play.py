"""One load against one provider with one strategy in between: everything is started, asked, and ended again."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar, TypeVarTuple, Unpack

import trio
from attrs import asdict, define, field, frozen

from tests.speed.llm.figures import Log, Outcome
from tests.speed.processes import ROOT, MeasurementError, Server, serving

from .loads import Agent, Request
from .simulator import Asked, Behaviour
from .strategies import MODEL, Ask, Strategy, Target, ours

T = TypeVar("T")
Args = TypeVarTuple("Args")

CONFIG = """\
[kernel]
log_level = "error"
max_connections = 1024

[llm]
provider = "openai"
model = "{model}"
base_url = "{url}/v1"
concurrency = {slots}
"""
KEY = "OPENAI_API_KEY=not-needed"  # a simulator asks for none, but OpenAI's package wants one
FIRST = Asked("warm-up/0", 60, 20)
PATIENCE = 60.0  # seconds that a load may take


@frozen
class Stage:
    """Where kernels live, and the argv to which their configuration is added."""

    directory: Path
    kernel: Sequence[str]

    def play(
        self, agents: Sequence[Agent], strategy: Strategy, behaviour: Behaviour, tokens: int | None = None
    ) -> tuple[list[Outcome], Log]:
        """A load without an end is broken off when so many ``tokens`` are in answered questions."""
        with simulator(behaviour) as url, self.kernel_for(url, behaviour) if strategy is ours else none() as kernel:
            outcomes = run(_play, Target(url, behaviour.slots, agents, kernel), strategy, tokens)
            return outcomes, log(url)

    def kernel_for(self, url: str, behaviour: Behaviour) -> AbstractContextManager[Path]:
        return self.serve(CONFIG.format(model=MODEL, url=url, slots=behaviour.slots))

    @contextlib.contextmanager
    def serve(self, config: str) -> Iterator[Path]:
        """A kernel with this configuration; its socket."""
        home = self.directory / f"line-{sum(1 for _ in self.directory.glob('line-*'))}"
        home.mkdir()
        (home / "kernel.toml").write_text(config)
        socket = home / "kernel.sock"
        argv = ["env", KEY, *self.kernel, str(home / "kernel.toml"), "--socket", str(socket)]
        with serving(Server([*argv, "--state-dir", str(home / "state")], socket, None), 15):
            yield socket


def run(measure: Callable[[Unpack[Args]], Awaitable[T]], *args: *Args) -> T:
    """Trio; what went wrong is one MeasurementError, however many nurseries it came through."""
    try:
        return trio.run(measure, *args)
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        raise MeasurementError(f"{type(cause).__name__}: {cause}") from error


@contextlib.contextmanager
def none() -> Iterator[None]:
    yield None


@contextlib.contextmanager
def simulator(behaviour: Behaviour) -> Iterator[str]:
    """A provider; what is yielded is where."""
    argv = [sys.executable, "-m", "tests.speed.llm.simulation.simulator", json.dumps(asdict(behaviour))]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, _, url = process.stdout.readline().strip().partition(" ")
            if ready != "ready":
                raise MeasurementError("the simulated provider did not start")
            yield url
        finally:
            process.terminate()


def log(url: str) -> Log:
    with urllib.request.urlopen(f"{url}/log", timeout=10) as answer:
        data = json.load(answer)
    data["served"] = [each for each in data["served"] if each["id"] != FIRST.id]
    return Log.read(data)


async def _play(target: Target, strategy: Strategy, tokens: int | None) -> list[Outcome]:
    outcomes = Outcomes(tokens)
    async with strategy(target) as ask:
        await ask(Request(FIRST, target.agents[0].name, "light"))  # a kernel loads what it needs when first asked
        with trio.fail_after(PATIENCE), outcomes.enough:
            begun = time.monotonic()
            async with trio.open_nursery() as nursery:
                for agent in target.agents:
                    nursery.start_soon(_live, agent, ask, begun, outcomes)
    return outcomes.all


@define
class Outcomes:
    """What has been answered or failed; ``enough`` is cancelled when so many ``tokens`` have been answered."""

    tokens: int | None
    all: list[Outcome] = field(factory=list)
    enough: trio.CancelScope = field(factory=trio.CancelScope)
    _answered: int = 0

    def add(self, outcome: Outcome) -> None:
        self.all.append(outcome)
        if outcome.failure is None:
            self._answered += outcome.request.asked.input + outcome.request.asked.output
        if self.tokens is not None and self._answered >= self.tokens:
            self.enough.cancel()


async def _live(agent: Agent, ask: Ask, begun: float, outcomes: Outcomes) -> None:
    """An agent's whole life."""

    async def one(request: Request, asked_at: float) -> None:
        failure = None
        try:
            await ask(request)
        except Exception as error:
            failure = type(error).__name__
        outcomes.add(Outcome(request, asked_at, time.monotonic(), failure))

    async def some() -> None:
        for request in requests:
            await one(request, time.monotonic())

    requests = iter(agent.requests)
    async with trio.open_nursery() as nursery:
        if agent.outstanding is not None:
            for _ in range(agent.outstanding):
                nursery.start_soon(some)
            return
        for request in requests:
            await trio.sleep(max(0.0, begun + request.due - time.monotonic()))
            nursery.start_soon(one, request, begun + request.due)
