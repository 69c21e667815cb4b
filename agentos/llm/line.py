"""Scheduler of LLM requests: queued fairly per agent and sent to their providers by one worker task.

A request passes these steps: the budget is checked, the request waits in its agent's queue, it is chosen, budget is
reserved, the provider is called, and the actual usage is settled. A request for a paused model, or one that is to be
retried later, holds neither a place at the provider nor a reservation: it waits in its agent's queue for another turn.
A request that names an alias goes to the next model, through the queue again, if its model doesn't answer or no budget
can be reserved for it; see routes.
The caller may cancel at any point: then the request leaves the queue, or the connection to the provider is closed, and
only what was used until then is charged.
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
from agentos_sdk.values import LLMClass, Usage

from .answers.contents import Asker, Contents, OpenQuestion
from .answers.response_cache import ResponseCache
from .ask import CannotAnswer, ProviderClient
from .budgets import Budgets
from .line_status import LineStatus
from .memory import RequestMemory
from .models.prices import find_price
from .models.provider_models import ModelUnavailable
from .models.routes import Candidates, Route
from .providers.provider import Answer, Question, estimate_input_tokens
from .queue.active_request import ActiveRequest
from .queue.claims import RequestSize, measure_request
from .queue.classes import find_class, find_weight
from .queue.fair_queue import MIN_CHARGE, weighted_cost
from .queue.fair_tree import Path
from .queue.jobs import Job, ThinkResult, charge_for, outermost_account, queue_names, validate_question
from .queue.lanes import Lanes
from .queue.reservations import Reservations
from .settings import DEFAULT_CONTEXT, LLMSettings, QueuePath

MAX_INLINE_BYTES = 64 << 10  # bytes of a request that is measured in the event loop; larger ones in a thread
SLOW_FAILURE = 0.3  # seconds; after a slower one, questions that wait for the model go to the next one of their alias
CLOSE_SECONDS = 2.0  # seconds that the provider's connections have to close cleanly
FLUSH_SECONDS = 10.0  # seconds that an answer waits at most until what it used beyond its reservation is on disk


class Moved(Exception):
    """A request got another model while it waited: it now has a place at that model's provider."""


def _measure(question: Question) -> tuple[int, RequestSize]:
    return estimate_input_tokens(question), measure_request(question)


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
        self._lanes = Lanes(self._queue, self._routes, lambda: self._wake.set())
        self._contexts = settings.context
        for each in self._clients.values():
            each.models.on_changed = self._lanes.update
        self._free = {
            name: each.concurrency or settings.concurrency for name, each in self._clients.items()
        }  # places at each provider
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

        ``route``: the models that the caller may use, of those that :meth:`resolve` returns for the question's model.
        ``class_``: at most the agent's own; ``None``: that.

        Raises ``Busy``, ``QuotaExceeded``, ``BadRequest``, ``NotFound``, ``Unavailable`` or ``Timeout``. However it
        ends, the question of an ``asker`` is kept in ``contents``.
        """
        with self.contents.keep(asker, question, self.cost) as asked:
            route = route or self.resolve(question.model)
            agent, key = queue_path[-1].name, await self._cache.hash(question, route.models)
            asked.result = self._cache.get(agent, key)
            if asked.result is None:
                asked.result = await self._ask(queue_path, question, on_text, asked, route, class_)
                self._cache.put(agent, key, asked.result)
            elif on_text is not None:
                on_text(asked.result.answer.text)
            return asked.result

    async def _ask(
        self,
        queue_path: QueuePath,
        question: Question,
        on_text: Callable[[str], None] | None,
        asked: OpenQuestion,
        route: Route,
        class_: LLMClass | None,
    ) -> ThinkResult:
        validate_question(question)
        account, now = outermost_account(queue_path), trio.current_time()
        with self._memory.hold(account, question.size):
            large = question.size > MAX_INLINE_BYTES
            tokens, sent = await run_in_thread(_measure, question) if large else _measure(question)
            candidates = self._find_candidates(queue_path, question, tokens, route)
            request = ActiveRequest(
                question, tokens, account, on_text, deadline=trio.current_effective_deadline(), sent=sent
            )
            self._routes.begin(candidates, request)
            client = self._routes.client_of(request.question.model)
            self._set_weights(queue_path)
            asked.job = job = Job(
                queue_path, request, candidates, now, question.max_tokens, class_ or find_class(queue_path)
            )
            job.ticket = ticket = self._queue.put(
                queue_names(queue_path), job, job.charge(weighted_cost(tokens)), now, lane=job.model, pool=client.name
            )
            request.on_usage = partial(self._charge, job)
            self._wake.set()
            try:
                await job.done.wait()
            finally:
                if self._queue.withdraw(ticket):
                    job.release()
                else:
                    job.scope.cancel()
        assert job.outcome is not None, "a cancelled request doesn't get here"
        if isinstance(job.outcome, CallError):
            raise job.outcome
        return job.outcome

    def _find_candidates(
        self, queue_path: QueuePath, question: Question, input_tokens: int, route: Route
    ) -> Candidates:
        """The models of a route that the caller's budgets allow and that can do what is asked; raises if none is.

        Vectors of different models can't be compared, so a question to embed has one: the first that has embeddings.
        """
        is_alias = tuple(route.models) != (question.model,) or bool(route.passed)
        passed = {each.model: each.reason for each in route.passed}
        candidates = Candidates(question.model if is_alias else None, [], passed)
        refusal: CallError | None = None
        for model in route.models:
            client = self._routes.client_of(model)
            try:
                client.check_supported(question.for_model(model, question.max_tokens))
                limit, for_hour = question.max_tokens, question.for_hour
                self._budgets.check(queue_path, model, input_tokens, limit, time.time(), for_hour=for_hour)
            except (QuotaExceeded, BadRequest) as error:
                if question.embed and isinstance(error, QuotaExceeded):
                    raise
                refusal = refusal or error
                candidates.passed[model] = str(error)
            else:
                candidates.left.append(model)
                if question.embed:
                    break
        if not candidates.left and refusal is not None:
            raise refusal
        return candidates

    async def prepare(self) -> None:
        """Connect to the providers: SDKs are loaded in a thread. Requests that arrive meanwhile wait for it."""
        for client in self._clients.values():
            await client.prepare()

    async def serve(self) -> None:
        """Send requests to the providers until cancelled."""
        try:
            async with trio.open_nursery() as jobs:
                for client in self._clients.values():
                    jobs.start_soon(client.models.serve)
                while True:
                    job = await self._next_job()
                    if job.next_turn is None:
                        jobs.start_soon(self._work, job)
                    else:
                        job.next_turn.set()
        finally:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                for client in self._clients.values():
                    await client.aclose()

    async def _next_job(self) -> Job:
        """The next request, as soon as its model accepts requests and its provider has a place for it."""
        while True:
            await trio.lowlevel.checkpoint()
            deadline = self._lanes.open()
            for pool, places in self._free.items():
                ticket = self._queue.take(trio.current_time(), pool) if places else None
                if ticket is not None:
                    self._free[pool] -= 1
                    job, job.pool = ticket.item, pool
                    job.holds_slot, job.slot_since = True, trio.current_time()
                    self._in_flight[job] = None
                    return job
            self._wake = trio.Event()
            with trio.CancelScope(deadline=deadline):
                await self._wake.wait()

    async def _work(self, job: Job) -> None:
        try:
            with job.scope:
                job.outcome = await self._answer(job)
        except CallError as error:
            job.outcome = error
        except Exception as bug:
            job.outcome = internal(bug, "the line to the model")
        finally:
            self._release_slot(job)
            waited = trio.current_time() - job.arrived_at - job.earlier_seconds
            self.counts.add_end(
                job.queue_path[-1].name,
                job.request.question.model,
                (job.earlier_seconds, waited),
                failed=not isinstance(job.outcome, ThinkResult),
                retried=job.request.attempts > 1,
            )
            job.release()
            job.done.set()

    async def _answer(self, job: Job) -> ThinkResult:
        answer = await self._send(job)
        now = trio.current_time()
        latency = job.earlier_seconds + now - job.slot_since
        requested, fallbacks = job.candidates.requested, job.candidates.fallbacks
        queued = now - job.arrived_at - latency
        cost = self.cost(job.model, answer.usage)
        context = find_price(self._contexts, job.model) or DEFAULT_CONTEXT
        return ThinkResult(
            answer, queued, latency, job.request.bound, job.model, requested, fallbacks, cost=cost, context=context
        )

    async def _send(self, job: Job) -> Answer:
        """Send a request to its model, and to the next one if that doesn't answer it or the budgets refuse it."""
        has_place = True
        while True:
            try:
                if not has_place:
                    await self._suspend(job, trio.lowlevel.checkpoint)
                client = self._routes.client_of(job.model)
                return await client.send(job.request, partial(self._turn, job), partial(self._pause, job))
            except Moved:
                has_place = True
            except (ModelUnavailable, CannotAnswer, QuotaExceeded) as error:
                if job.request.failed_seconds >= SLOW_FAILURE and not isinstance(error, QuotaExceeded):
                    self._lanes.leave(job.model, error)
                self._routes.fall_back(job.candidates, job.request, error)
                has_place = False

    @contextlib.asynccontextmanager
    async def _turn(self, job: Job) -> AsyncIterator[None]:
        """Reserve budget for one attempt; its usage is charged and settled however it ends."""
        request = job.request
        try:
            grant = await self._reservations.reserve(job, partial(self._wait_for_budget, job))
        except QuotaExceeded:
            assert job.ticket is not None, "it is in flight"
            self._queue.charge(job.ticket, MIN_CHARGE)  # no request was sent in this turn
            raise
        request.question = request.question.for_model(job.model, grant.max_tokens)
        attempts, waits_for_room = request.attempts, False
        try:
            yield
            waits_for_room = request.attempts == attempts and self._routes.client_of(job.model).keeps_room_for(request)
        finally:
            assert job.ticket is not None, "it is in flight"
            used = Usage()
            if request.attempts > attempts:
                used = request.last_usage
                self._charge(job)
                if job.kept is not None:
                    self._queue.charge(job.kept, MIN_CHARGE)  # the request was sent after all, and is charged by itself
                    job.kept = None
            elif waits_for_room and job.kept is None:
                job.kept = job.ticket  # it stays charged while others wait for this request, and if it is withdrawn
            else:
                self._queue.charge(job.ticket, MIN_CHARGE)  # its model was closed meanwhile
            calls = int(used.total > 0 and not job.is_counted)  # not a call if nothing was used
            job.is_counted = job.is_counted or bool(calls)
            self._record_use(queue_names(job.queue_path), calls, used)
            cost = self._budgets.cost_units(request.question.model, used)
            self.on_use(job.queue_path[-1].name, request.question.model, calls, used, cost)
            self.counts.add_use(job.queue_path[-1].name, request.question.model, calls, used, cost)
            with trio.move_on_after(FLUSH_SECONDS, shield=True):
                await self._reservations.settle(grant, used, calls)

    async def _wait_for_budget(self, job: Job, settled: Callable[[], Awaitable[None]]) -> None:
        assert job.ticket is not None, "it is in flight"
        self._queue.charge(job.ticket, MIN_CHARGE)  # no request was sent in this turn
        await self._suspend(job, settled)

    def _charge(self, job: Job) -> None:
        assert job.ticket is not None, "it is in flight"
        self._queue.charge(job.ticket, job.charge(charge_for(job.request)))

    async def _pause(self, job: Job, seconds: float) -> None:
        """Wait until a request may be sent again: in the queue if its model is paused, else for ``seconds``."""
        closed = job.model in self._queue.closed
        await self._suspend(job, trio.lowlevel.checkpoint if closed else partial(trio.sleep, seconds))

    async def _suspend(self, job: Job, wait: Callable[[], Awaitable[None]]) -> None:
        """Give up the place at the provider until ``wait`` returns; then queue again and pay for it like any other.

        Raises :class:`Moved` if it was moved to another model meanwhile.
        """
        self._release_slot(job)
        self._suspended[job] = None
        try:
            await wait()
        finally:
            del self._suspended[job]
        model = job.model
        client = self._routes.client_of(model)
        client.models.check_available(job.request)
        job.next_turn = turn = trio.Event()
        path, cost = queue_names(job.queue_path), job.charge(weighted_cost(job.request.input))
        job.ticket = ticket = self._queue.put(
            path, job, cost, trio.current_time(), lane=model, pool=client.name, again=True
        )
        self._wake.set()
        try:
            await turn.wait()
        finally:
            self._queue.withdraw(ticket)
        if job.refusal is not None:
            raise job.refusal
        if job.model != model:
            raise Moved

    def _release_slot(self, job: Job) -> None:
        if job.holds_slot:
            job.holds_slot = False
            job.earlier_seconds += trio.current_time() - job.slot_since
            del self._in_flight[job]
            self._free[job.pool] += 1
            self._wake.set()

    def remove_agent(self, queue_path: QueuePath) -> None:
        """Remove an agent that has ended for good; its name will not be used again."""
        self._queue.remove(queue_names(queue_path))
        self._weights.pop(queue_names(queue_path), None)
        self._cache.remove_agent(queue_path[-1].name)

    def charge(self, queue_path: QueuePath, amounts: Amounts, used: bool) -> None:
        """Count the use of something else than the model, see :meth:`agentos.llm.budgets.Budgets.charge`."""
        self._budgets.charge(queue_path, amounts, time.time(), used)

    async def reset_budget(self, name: str) -> None:
        """Set to 0 what is used of the budgets of ``name``; questions that wait for budget may try again."""
        await self._reservations.reset(name)

    def _set_weights(self, queue_path: QueuePath) -> None:
        for depth in range(1, len(queue_path) + 1):
            path, weight = queue_names(queue_path[:depth]), find_weight(queue_path[:depth])
            if self._weights.get(path, 1.0) != weight:
                self._queue.set_weight(path, weight)
                self._weights[path] = weight
