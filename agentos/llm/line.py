"""Scheduler of LLM requests: a fair queue, and slots at each provider.

Agents share models that answer few requests at once. If each agent called the provider itself, the one with the most
requests would get most, and the provider would refuse all of them. So each request waits in its agent's queue until the
fair queue gives it a slot, see :mod:`agentos.llm.queue.fair_queue`; :mod:`agentos.llm.queue.request` draws its states.

What must stay true: a request that isn't being sent has no slot and no reservation, whatever it waits for; one that had
a slot is charged for it, so that no agent gains slots by requests that fail; a caller that leaves is charged what was
used until then. A request that names an alias goes to its next model, through the queue again, if its model doesn't
answer or no budget can be reserved for it, see :mod:`agentos.llm.models.routes`. docs/decisions/0099.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import trio

from agentos.kernel.internal_errors import internal
from agentos.services.quotas import Amounts
from agentos.threads import run_in_thread
from agentos_sdk.errors import BadRequest, CallError, QuotaExceeded
from agentos_sdk.values import Fallback, LLMClass, Usage

from .answers.contents import Asker, Contents
from .answers.response_cache import ResponseCache
from .ask import CannotAnswer, ProviderClient
from .budgets import Budgets
from .line_status import AgentUsage, LineStatus
from .memory import RequestMemory
from .models.model import ModelUnavailable
from .models.prices import find_price
from .models.routes import Route
from .providers.provider import Answer, Question
from .queue.classes import find_class, find_weight
from .queue.fair_queue import MIN_CHARGE
from .queue.fair_tree import Path
from .queue.lanes import Lanes
from .queue.request import Request, State, ThinkResult, validate_question
from .queue.reservations import Reservations
from .settings import DEFAULT_CONTEXT, LLMSettings, QueuePath, queue_names

MAX_INLINE_BYTES = 64 << 10  # bytes of a request that is measured in the event loop; larger ones in a thread
SLOW_FAILURE = 0.3  # seconds; after a slower one, questions that wait for the model go to the next one of their alias
CLOSE_SECONDS = 2.0  # seconds that the provider's connections have to close cleanly
MAX_REMEMBERED = 4096  # agents with kept counts of calls and tokens
FLUSH_SECONDS = 10.0  # seconds that an answer waits at most until what it used beyond its reservation is on disk


class Moved(Exception):
    """A request got another model while it waited: it now has a slot at that model's provider."""


class Line(LineStatus):
    """One per kernel. :meth:`serve` is its worker; each provider has at most ``concurrency`` requests in flight."""

    def __init__(
        self,
        settings: LLMSettings,
        client: ProviderClient,
        budgets: Budgets,
        model: str,
        contents: Contents | None = None,
        others: Sequence[ProviderClient] = (),
    ) -> None:
        """``model`` is used for requests that name none. ``others`` are the providers besides the first, ``client``."""
        super().__init__(settings, (client, *others), budgets, model)
        self.contents = contents or Contents(settings.keep_contents)
        self._cache = ResponseCache(settings.cache, settings.cache_shared)
        self._lanes = Lanes(self._queue, self.routes, lambda: self._wake.set())
        self._contexts = settings.context
        for each in self._clients.values():
            each.models.on_changed = self._lanes.update
        self._slots = {name: each.concurrency or settings.concurrency for name, each in self._clients.items()}  # free
        self._wake = trio.Event()  # set when a request may be sent
        self._reservations = Reservations(budgets)
        self.on_use: Callable[[str, str, int, Usage, int | None], None] = lambda name, model, calls, used, cost: None
        self._memory = RequestMemory()
        self._weights: dict[Path, float] = {}

    async def think(
        self,
        queue_path: QueuePath,
        question: Question,
        on_text: Callable[[str], None] | None = None,
        asker: Asker | None = None,
        route: Route | None = None,
        class_: LLMClass | None = None,
    ) -> ThinkResult:
        """Return the model's answer to a request; ``on_text`` is called with each piece of its text as it arrives.

        ``route``: the models that the caller may use, of those that its name stands for, see ``routes``.
        ``class_``: at most the agent's own; ``None``: that.

        Raises ``Busy``, ``QuotaExceeded``, ``BadRequest``, ``NotFound``, ``Unavailable`` or ``Timeout``. However it
        ends, the question of an ``asker`` is kept in ``contents``.
        """
        request = Request(question, queue_path, on_text, class_ or find_class(queue_path), self._charge)
        try:
            request.result = await self._find_answer(request, route or self.routes.resolve(question.model))
        except BaseException as error:
            self._end(request, error)
            raise
        else:
            self._end(request)
            return request.result
        finally:
            self.contents.keep(asker, request, self.budgets.cost)

    async def _find_answer(self, request: Request, route: Route) -> ThinkResult:
        """Take a kept answer to an equal question, or ask the model."""
        question, agent = request.question, request.queue_path[-1].name
        key = await self._cache.hash(question, route.models) if self._cache.lifetime else None
        if key is not None and (result := self._cache.get(agent, key)) is not None:
            if request.on_text is not None:
                request.on_text(result.answer.text)
            return result
        validate_question(question)
        with self._memory.hold(request.account, question.size):
            if question.size > MAX_INLINE_BYTES:
                await run_in_thread(request.measure)
            else:
                request.measure()
            self._find_candidates(request, route)
            self.routes.begin(request)
            self._set_weights(request.queue_path)
            self._requests[request] = None
            try:
                result = self._describe(request, await self._send(request))
            except CallError:
                raise
            except Exception as bug:
                raise internal(bug, "the line to the model") from None
        if key is not None:
            self._cache.put(agent, key, result)
        return result

    def _end(self, request: Request, error: BaseException | None = None) -> None:
        self._free_slot(request)
        self._requests.pop(request, None)
        request.end(error)
        if request.slot_since is not None:
            served = request.served_seconds
            waited = trio.current_time() - request.arrived_at - served
            self.counts.add_end(
                request.queue_path[-1].name,
                request.model,
                (served, waited),
                failed=request.result is None,
                retried=request.attempts > 1,
            )

    def _find_candidates(self, request: Request, route: Route) -> None:
        """Find the models of a route that the caller's budgets allow and that can do what is asked; raises if none is.

        Vectors of different models can't be compared, so a question to embed has one: the first that has embeddings.
        """
        question = request.question
        if tuple(route.models) != (question.model,) or route.passed:
            request.alias = question.model
        request.passed = {each.model: each.reason for each in route.passed}
        limit, for_hour = question.max_tokens, question.for_hour
        refusal: CallError | None = None
        for model in route.models:
            client = self.routes.client_of(model)
            try:
                client.check_supported(question.for_model(model, limit))
                self.budgets.check(request.queue_path, model, request.input, limit, time.time(), for_hour=for_hour)
            except (QuotaExceeded, BadRequest) as error:
                if question.embed and isinstance(error, QuotaExceeded):
                    raise
                refusal = refusal or error
                request.passed[model] = str(error)
            else:
                request.candidates.append(model)
                if question.embed:
                    break
        if not request.candidates and refusal is not None:
            raise refusal

    async def prepare(self) -> None:
        """Connect to the providers: SDKs are loaded in a thread. Requests that arrive meanwhile wait for it."""
        for client in self._clients.values():
            await client.prepare()

    async def serve(self) -> None:
        """Give slots to requests until cancelled: to each as soon as its model accepts requests and one is free."""
        try:
            async with trio.open_nursery() as nursery:
                for client in self._clients.values():
                    nursery.start_soon(client.models.serve)
                while True:
                    await trio.lowlevel.checkpoint()
                    deadline = self._lanes.open()
                    if not self._admit_next():
                        self._wake = trio.Event()
                        with trio.CancelScope(deadline=deadline):
                            await self._wake.wait()
        finally:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                for client in self._clients.values():
                    await client.aclose()

    def _admit_next(self) -> bool:
        """Give a slot to the next request of the first provider that has one free; returns whether there was one."""
        for provider, free in self._slots.items():
            ticket = self._queue.take(trio.current_time(), provider) if free else None
            if ticket is not None:
                self._slots[provider] -= 1
                ticket.item.admit(provider)
                return True
        return False

    def _describe(self, request: Request, answer: Answer) -> ThinkResult:
        latency = request.served_seconds
        return ThinkResult(
            answer,
            trio.current_time() - request.arrived_at - latency,
            latency,
            request.bound,
            request.model,
            request.alias,
            [Fallback(model, reason) for model, reason in request.passed.items()],
            cost=self.budgets.cost(request.model, answer.usage),
            context=find_price(self._contexts, request.model) or DEFAULT_CONTEXT,
        )

    async def _send(self, request: Request) -> Answer:
        """Send a request to its model, and to the next one if that doesn't answer it or the budgets refuse it."""
        await trio.lowlevel.checkpoint()  # requests of its agent that end at this instant are charged first
        await self._wait_for_slot(request)
        fell_back = False
        while True:
            try:
                if fell_back:
                    await self._defer(request)
                client = self.routes.client_of(request.model)
                return await client.send(request, partial(self._reserve, request), partial(self._pause, request))
            except Moved:
                fell_back = False
            except (ModelUnavailable, CannotAnswer, QuotaExceeded) as error:
                if error is request.refusal:
                    raise
                if request.failed_seconds >= SLOW_FAILURE and not isinstance(error, QuotaExceeded):
                    self._lanes.leave(request.model, error)
                self.routes.fall_back(request, error)
                fell_back = True

    @contextlib.asynccontextmanager
    async def _reserve(self, request: Request) -> AsyncIterator[None]:
        """Reserve budget for one attempt; its usage is charged and settled however it ends."""
        try:
            grant = await self._reservations.reserve(request, partial(self._wait_for_budget, request))
        except QuotaExceeded:
            self._charge_nothing(request)
            raise
        request.outgoing = request.question.for_model(request.model, grant.max_tokens)
        attempts, waits_for_room = request.attempts, False
        try:
            yield
            client = self.routes.client_of(request.model)
            waits_for_room = request.attempts == attempts and client.keeps_room_for(request)
        finally:
            used = Usage()
            if request.attempts > attempts:
                used = request.attempt.usage
                self._charge(request)
                if request.room is not None:
                    self._queue.charge(request.room, MIN_CHARGE)  # it was sent after all, and is charged by itself
                    request.room = None
            elif waits_for_room and request.room is None:
                request.room = request.ticket  # it stays charged while others wait for it, and if it is withdrawn
            else:
                self._charge_nothing(request)  # its model was closed meanwhile
            calls = self._record_use(request, used)
            with trio.move_on_after(FLUSH_SECONDS, shield=True):
                await self._reservations.settle(grant, used, calls)

    def _record_use(self, request: Request, used: Usage) -> int:
        """Count what an attempt has used; returns 1 if the request is a call from now on: not if nothing was used."""
        calls = int(used.total > 0 and not request.is_counted)
        request.is_counted = request.is_counted or bool(calls)
        path = queue_names(request.queue_path)
        before = self._usage.pop(path, AgentUsage())
        self._usage[path] = AgentUsage(before.calls + calls, before.usage + used)
        if len(self._usage) > MAX_REMEMBERED:
            del self._usage[next(iter(self._usage))]  # the agent with the oldest last request
        cost = self.budgets.cost_units(request.model, used)
        for count in (self.on_use, self.counts.add_use):
            count(path[-1], request.model, calls, used, cost)
        return calls

    async def _wait_for_budget(self, request: Request, settled: Callable[[], Awaitable[None]]) -> None:
        self._charge_nothing(request)
        await self._defer(request, settled)

    def _charge(self, request: Request) -> None:
        assert request.ticket is not None, "it has a slot"
        self._queue.charge(request.ticket, request.attempt_cost)

    def _charge_nothing(self, request: Request) -> None:
        """It had a slot, and wasn't sent."""
        assert request.ticket is not None, "it has a slot"
        self._queue.charge(request.ticket, MIN_CHARGE)

    async def _pause(self, request: Request, seconds: float) -> None:
        """Wait until a request may be sent again: in the queue if its model is paused, else for ``seconds``."""
        closed = request.model in self._queue.closed
        await self._defer(request, trio.lowlevel.checkpoint if closed else partial(trio.sleep, seconds))

    async def _defer(self, request: Request, wait: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint) -> None:
        """Give up the slot until ``wait`` returns; then queue again and pay for it like any other.

        Raises :class:`Moved` if it was moved to another model meanwhile.
        """
        self._free_slot(request)
        request.enter(State.DEFERRED)
        await wait()
        model = request.model
        self.routes.client_of(model).models.check(request)
        await self._wait_for_slot(request, again=True)
        if request.model != model:
            raise Moved

    async def _wait_for_slot(self, request: Request, again: bool = False) -> None:
        """Queue a request until it has a slot at the provider of its model; raises its refusal."""
        request.queue(
            self._queue.put(
                queue_names(request.queue_path),
                request,
                request.cost,
                trio.current_time(),
                lane=request.model,
                pool=self.routes.client_of(request.model).name,
                again=again,
            )
        )
        assert request.ticket is not None, "it is queued"
        self._wake.set()
        try:
            await request.admitted.wait()
        finally:
            self._queue.withdraw(request.ticket)
        if request.refusal is not None:
            raise request.refusal

    def _free_slot(self, request: Request) -> None:
        if request.has_slot:
            self._slots[request.provider] += 1
            self._wake.set()

    def remove_agent(self, queue_path: QueuePath) -> None:
        """Remove an agent that has ended for good; its name will not be used again."""
        self._queue.remove(queue_names(queue_path))
        self._weights.pop(queue_names(queue_path), None)
        self._cache.remove_agent(queue_path[-1].name)

    def charge(self, queue_path: QueuePath, amounts: Amounts, used: bool) -> None:
        """Count the use of something else than the model, see :meth:`agentos.llm.budgets.Budgets.charge`."""
        self.budgets.charge(queue_path, amounts, time.time(), used)

    async def reset_budget(self, name: str) -> None:
        """Set to 0 what is used of the budgets of ``name``; questions that wait for budget may try again."""
        await self._reservations.reset(name)

    def _set_weights(self, queue_path: QueuePath) -> None:
        for depth in range(1, len(queue_path) + 1):
            path, weight = queue_names(queue_path[:depth]), find_weight(queue_path[:depth])
            if self._weights.get(path, 1.0) != weight:
                self._queue.set_weight(path, weight)
                self._weights[path] = weight
