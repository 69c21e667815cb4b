"""The endpoint on loopback, with the real line and the offline provider behind it, for a client in the same loop."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import trio
from attrs import define, evolve, field

from agentos.agents.registry import Registry
from agentos.agents.state_spaces import StateSpaces
from agentos.database import open_database
from agentos.gateways.endpoint import Endpoints
from agentos.kernel.background import Background
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.kernel.wire.listener import ConnectionLimit
from agentos.llm import budgets
from agentos.llm.answers.contents import Asker
from agentos.llm.ask import ProviderClient
from agentos.llm.budgets import Budgets
from agentos.llm.line import Line
from agentos.llm.models.api_keys import Variable, Variables
from agentos.llm.models.routes import Route
from agentos.llm.providers.choose import NoProvider, ProviderChoice, choose_provider, connect
from agentos.llm.providers.offline import Offline
from agentos.llm.providers.offline_rules import Rule
from agentos.llm.providers.provider import Provider, Question
from agentos.llm.queue.request import ThinkResult
from agentos.llm.settings import Account, LLMSettings, OfflineSettings, ProviderName, QueuePath, Retry, Share
from agentos.services.quotas import Quota
from agentos.services.state.batch import StateLimits
from agentos.services.state.rows import TABLES as STATE
from agentos.services.state.state import State
from agentos.syscalls.model.think import Thinking
from agentos.syscalls.state import StateCalls
from agentos_sdk.values import LLMClass
from tests.llm.vendors import anthropic_wire, gemini_wire, openai_wire
from tests.llm.vendors.server import Vendor, serve
from tests.support.clients import openai
from tests.support.rights import Grants, Notebook
from tests.support.wire import PATIENCE

WIRES: dict[ProviderName, ModuleType] = {
    "openai": openai_wire,
    "gemini": gemini_wire,
    "anthropic": anthropic_wire,
}
MODEL = "offline-1"
MIB = 1 << 20


@define
class Served:
    """``asked`` are the questions that reached the line, and what came of each; ``held`` is the callers' allowance."""

    port: int
    key: str | None
    line: Line
    connection_limit: ConnectionLimit
    scope: trio.CancelScope
    caller: Caller
    common: Endpoints
    asked: list[Question] = field(factory=list)
    ended: list[str] = field(factory=list)
    classes: list[LLMClass | None] = field(factory=list)  # that the questions named

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self, **more: Any) -> openai.AsyncOpenAI:
        """OpenAI's own, to be used in ``async with``."""
        return openai.AsyncOpenAI(base_url=self.url, **{"api_key": self.key or "any", "timeout": PATIENCE, **more})

    @contextlib.asynccontextmanager
    async def other_agent(self) -> AsyncIterator[openai.AsyncOpenAI]:
        """A client of another agent's endpoint."""
        other = evolve(self.caller, id=2, name="other")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.common.serve, listener, other)
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
                async with openai.AsyncOpenAI(base_url=url, api_key="any", timeout=PATIENCE) as client:
                    yield client
                nursery.cancel_scope.cancel()

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


class Spaces(StateSpaces):
    """Of callers that are in no registry."""

    def account(self, caller: Caller) -> str:
        return caller.name


class Watched(Line):
    """A line that keeps its questions, and may refuse them."""

    def watch(self, here: Served, before: Callable[[Question], None] | None) -> None:
        self._here, self._before = here, before

    async def think(
        self,
        queue_path: QueuePath,
        question: Question,
        on_text: Callable[[str], None] | None = None,
        asker: Asker | None = None,
        route: Route | None = None,
        class_: LLMClass | None = None,
    ) -> ThinkResult:
        self._here.asked.append(question)
        self._here.classes.append(class_)
        outcome = "cancelled"
        try:
            if self._before is not None:
                self._before(question)
            thought = await super().think(queue_path, question, on_text, asker, route, class_)
            outcome = "answered"
        except trio.Cancelled:
            raise
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self._here.ended.append(outcome)
        return thought


@contextlib.asynccontextmanager
async def served(
    *rules: Rule,
    key: str | None = None,
    budget: Sequence[Quota] = (),
    connection_limit: ConnectionLimit | None = None,
    max_payload: int = MIB,
    think: Callable[[Question], None] | None = None,
    offline: OfflineSettings | None = None,
    choice: ProviderChoice | NoProvider | None = None,
    model: str = MODEL,
    grants: Grants | None = None,
    notebook: Notebook | None = None,
    max_keys: int = 1000,
    **settings: Any,
) -> AsyncIterator[Served]:
    """``think`` is called before each question goes to the line, and may raise instead.

    ``choice`` is a provider to ask instead of the offline one. ``model`` is the default one.
    """
    llm = LLMSettings(**{"concurrency": 4, "retry": Retry(attempts=1), **settings})
    with tempfile.TemporaryDirectory() as place, socket.create_server(("127.0.0.1", 0)) as listener:
        async with open_database(Path(place, "db"), {"quotas": budgets.TABLES, "state": STATE}) as database:
            accounts = await Budgets.load(llm.prices, database, llm.max_tokens, time.time())

            async def reach() -> Provider:
                if choice is not None:
                    return await connect(choice, llm)
                return Offline(offline or OfflineSettings(), rules)

            name = choice.provider if isinstance(choice, ProviderChoice) else "offline"
            line = Watched(llm, ProviderClient(reach, llm.retry, llm.timeouts, name=name), accounts, model)
            queue_path = (Account("kernel"), Account("agent", Share(budget=budget)))
            connection_limit = connection_limit or ConnectionLimit(1000)
            state = await State.load(database, StateLimits(max_keys, 10 << 20))
            table = Table(
                [
                    *Thinking(line, lambda caller: queue_path, Background(), max_payload).syscalls(),
                    *StateCalls(Spaces(Registry(), state), lambda caller, kind: [""]).syscalls(),
                ]
            )
            caller = Caller(1, "agent", "agent", table, grants or Grants(), notebook or Notebook())
            async with trio.open_nursery() as nursery:
                common = Endpoints(line, lambda caller: queue_path, connection_limit, max_payload)
                port = listener.getsockname()[1]
                here = Served(port, key, line, connection_limit, nursery.cancel_scope, caller, common)
                line.watch(here, think)
                nursery.start_soon(line.serve)
                nursery.start_soon(partial(common.serve, listener, caller, key))
                yield here
                nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def behind(name: ProviderName, **settings: Any) -> AsyncIterator[tuple[Served, Vendor]]:
    """The endpoint with a vendor behind the kernel."""
    async with trio.open_nursery() as nursery:
        vendor = await nursery.start(serve, WIRES[name])
        asked = LLMSettings(provider=name, model="a-model", base_url=vendor.base_url, **settings)
        choice = choose_provider(asked, Variables({f"{name.upper()}_API_KEY": Variable(vendor.key)}))
        async with served(choice=choice, model="a-model", **settings) as here:
            yield here, vendor
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], object], what: str) -> None:
    """Return when it holds; fails when it doesn't."""
    with trio.move_on_after(PATIENCE):
        while not holds():
            await trio.sleep(0.005)
        return
    raise AssertionError(f"not within {PATIENCE:g} s: {what}")
