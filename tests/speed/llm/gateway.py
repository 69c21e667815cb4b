"""Two providers behind one kernel: fairness over models and classes, budgets, and what an outage costs."""

import json
import math
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import get_args

import trio
from attrs import frozen

from agentos.llm.queue.classes import CLASS_WEIGHTS
from agentos.llm.queue.fair_queue import jain_index, weighted_cost
from agentos_sdk.client import Kernel, connect
from agentos_sdk.opcodes import Op
from agentos_sdk.values import LLMClass
from tests.speed.processes import MeasurementError

from .simulation.loads import SIZES
from .simulation.play import FIRST, Stage, log, run, simulator
from .simulation.simulator import Asked, Behaviour, Outage, Served

MODELS = ("one", "two")
CLASSES: Sequence[LLMClass] = ("interactive", "normal", "batch")
AGENTS = 6
DEEP = 4  # questions that an agent has under way for each model
FALLBACK_AFTER, FIRST_TOKEN, IDLE = 2.0, 2.5, 2.5  # seconds, in the configuration
QUESTIONS, INTERVAL = 20, 0.2  # to an alias during an outage, so many seconds apart
BUDGET = 20_000  # tokens
UNREACHABLE = "can't be reached"

CONFIG = """\
[kernel]
log_level = "error"

[llm]
model = "fast"
concurrency = {slots}
fallback_after = "{fallback_after}s"
{more}

[llm.aliases]
fast = ["one", "two"]

[llm.limits.one]
first_token = "{first_token}s"
idle = "{idle}s"
"""
PROVIDER = """
[llm.providers.{model}]
type = "openai"
base_url = "{url}/v1"
keys = ["env:OPENAI_API_KEY"]
models = ["{model}"]
"""


@frozen
class Row:
    """A figure of one case: ``what`` was measured, its ``value``, and how that is formatted for people."""

    case: str
    concurrency: int
    what: str
    value: float
    shown: str = "{:.3f}"


def fast(slots: int) -> Behaviour:
    return Behaviour(slots=slots, base=0.002 * slots, per_input=0.00001 * slots, per_output=0.0001 * slots)


@contextmanager
def kernel(stage: Stage, slots: int, urls: Mapping[str, str], more: str = "") -> Iterator[Path]:
    config = CONFIG.format(slots=slots, more=more, fallback_after=FALLBACK_AFTER, first_token=FIRST_TOKEN, idle=IDLE)
    with stage.serve(config + "".join(PROVIDER.format(model=model, url=url) for model, url in urls.items())) as path:
        yield path


@frozen
class Agent:
    """An agent with a connection of its own; it asks questions without end, all of one size."""

    name: str
    kernel: Kernel
    class_: LLMClass
    size: tuple[int, int]

    async def ask(self, asked: Asked, model: str) -> Mapping[str, object]:
        limits = {"model": model, "class": self.class_, "max_tokens": asked.output}
        body = json.dumps({"prompt": asked.text(), **limits}).encode()
        reply: Mapping[str, object] = json.loads(await self.kernel.exchange(Op.THINK, body))
        return reply

    def question(self, number: int) -> Asked:
        return Asked(f"{self.name}/{number}", *self.size)


async def with_agents(
    path: Path, classes: Sequence[LLMClass], play: Callable[[Sequence[Agent]], Awaitable[None]]
) -> None:
    async with AsyncExitStack() as connections:
        agents = []
        for number in range(AGENTS):
            size = SIZES["heavy" if len(classes) == 1 and number % 2 else "light"]
            connected = await connections.enter_async_context(connect(str(path)))
            agents.append(Agent(f"agent-{number}", connected, classes[number % len(classes)], size))
        await agents[0].ask(FIRST, "two")  # a kernel loads what it needs when first asked
        await play(agents)


async def contend(agents: Sequence[Agent], models: Sequence[str], seconds: float, answers: float = math.inf) -> None:
    """All agents always have questions waiting, for each model, until so many are answered or a budget is used up.

    They begin one after the other: the places that are free at first are the first agent's, whose share is large.
    """
    numbers, answered = count(), count(1)

    async def go_on(agent: Agent, model: str) -> None:
        while (reply := await agent.ask(agent.question(next(numbers)), model))["success"]:
            if next(answered) >= answers:
                nursery.cancel_scope.cancel()
        if reply["code"] != "quota_exceeded":
            raise MeasurementError(str(reply["error"]))

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for agent in agents:
                for model in models:
                    for _ in range(DEEP):
                        nursery.start_soon(go_on, agent, model)
                await trio.lowlevel.checkpoint()  # now all are sent
                await agent.kernel.exchange(Op.NOOP, b"")  # and arrived


def share(
    stage: Stage,
    slots: int,
    models: Sequence[str],
    classes: Sequence[LLMClass],
    seconds: float,
    answers: float = math.inf,
) -> Row:
    """Jain's index over what agents got from all models, each relative to the weight of its class."""
    served = serve(stage, slots, models, classes, seconds, answers=answers)
    got = {f"agent-{number}": 0.0 for number in range(AGENTS)}
    for each in served:
        name = each.id.partition("/")[0]
        class_ = classes[int(name.partition("-")[2]) % len(classes)]
        got[name] += weighted_cost(each.input, each.output) / CLASS_WEIGHTS[class_]
    case = f"{plural(len(models), 'model')}, {plural(len(classes), 'class', 'classes')}"
    return Row(case, slots, "Jain's index", jain_index(got.values()))


def spend(stage: Stage, slots: int, seconds: float = 300.0) -> Row:
    """How much more than a budget all models together have served; agents of all classes ask until they are refused."""
    more = f'budget = [{{ tokens = {BUDGET}, per = "1d" }}]'
    served = serve(stage, slots, MODELS, CLASSES, seconds, more)
    used = sum(each.input + each.output for each in served)
    return Row(f"budget of {BUDGET:,} tokens", slots, "tokens served", used, "{:,.0f}")


def serve(
    stage: Stage,
    slots: int,
    models: Sequence[str],
    classes: Sequence[LLMClass],
    seconds: float,
    more: str = "",
    answers: float = math.inf,
) -> Sequence[Served]:
    with ExitStack() as providers:
        urls = {model: providers.enter_context(simulator(fast(slots))) for model in MODELS}
        with kernel(stage, slots, urls, more) as path:
            run(with_agents, path, classes, lambda agents: contend(agents, models, seconds, answers))
            return [each for url in urls.values() for each in log(url).served]


def outage(stage: Stage, slots: int, kind: Outage | None, questions: int = QUESTIONS) -> Row:
    """The longest that one of ``questions`` to an alias took while its first model was out.

    ``kind=None``: that model can't be reached.
    """
    took: list[float] = []

    async def ask_all(agents: Sequence[Agent]) -> None:
        async def one(number: int) -> None:
            agent, began = agents[number % len(agents)], time.monotonic()
            reply = await agent.ask(agent.question(number), "fast")
            took.append(time.monotonic() - began)
            assert (reply["success"], reply.get("model")) == (True, "two"), reply

        async with trio.open_nursery() as nursery:
            for number in range(questions):
                nursery.start_soon(one, number)
                await trio.sleep(INTERVAL)

    with ExitStack() as providers:
        good = providers.enter_context(simulator(fast(slots)))
        if kind is None:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                bad = f"http://127.0.0.1:{closed.getsockname()[1]}"
        else:
            bad = providers.enter_context(simulator(Behaviour(slots=slots, outage=kind)))
        with kernel(stage, slots, {"one": bad, "two": good}) as path:
            run(with_agents, path, CLASSES[:1], ask_all)
    return Row(f"the first model {kind or UNREACHABLE}", slots, "longest wait, s", max(took), "{:.2f}")


def whole(stage: Stage) -> Iterator[Row]:
    for slots in (1, 4):
        for models in (MODELS[:1], MODELS):
            for classes, seconds in ((CLASSES[1:2], 6.0), (CLASSES, 15.0)):
                yield share(stage, slots, models, classes, seconds)
    for slots in (1, 4):
        yield spend(stage, slots)
    for slots in (1, 4):
        for kind in (None, *get_args(Outage)):
            yield outage(stage, slots, kind)


def plural(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
