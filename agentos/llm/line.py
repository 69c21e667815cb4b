"""Scheduler of LLM requests: queued fairly per agent and sent to the provider by one worker task.

A request passes these steps: the budget is checked, the request waits in its agent's queue, it is chosen, budget is
reserved, the provider is called, and the actual usage is settled. A request for a paused model, or one that is to be
retried later, holds neither a place at the provider nor a reservation: it waits in its agent's queue for another turn.
The caller may cancel at any point: then the request leaves the queue, or the connection to the provider is closed, and
only what was used until then is charged.
"""

import contextlib
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

import trio
from attrs import define, evolve, field, frozen

from agentos.kernel.internal_errors import internal
from agentos.services.quotas import BudgetState
from agentos_sdk.errors import BadRequest, CallError, QuotaExceeded

from .ask import ActiveRequest, ProviderClient
from .budgets import Budgets, Grant
from .claims import measure_request
from .fair_queue import LEAST, FairQueue, Path, Ticket, Waits, weighed
from .memory import RequestMemory
from .model_availability import ModelState
from .places import Place, places
from .providers.provider import Answer, Question, Usage, guessed_input
from .settings import LLMSettings, QueuePath

LOOK_BACK = 60.0  # seconds at least over which fairness is computed
MOST_PARTS = 2000  # of a request: the vendor's SDK takes half a millisecond for each
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")  # it becomes a part of a URL
HELD = 50.0  # tokens per second charged for the time of a failed attempt: it kept the provider from other requests
AT_ONCE = 64 << 10  # bytes of a request that is measure_request in the event loop; larger ones in a thread
REMEMBERED = 4096  # agents with kept counts of calls and tokens
CLOSING = 2.0  # seconds that the provider's connections have to close cleanly


@frozen
class Thought:
    """An answer; seconds that the request waited, and that the provider worked on it.

    ``bound`` says, for the audit log, that the tokens charged are not those that the provider claims, and why.
    """

    answer: Answer
    queued: float
    latency: float
    bound: str | None = None


@frozen
class Spent:
    """What an agent has used since the kernel started: requests sent, and their tokens."""

    calls: int = 0
    usage: Usage = Usage()


@define(eq=False)
class _Job:
    queue_path: QueuePath
    asked: ActiveRequest
    came: float
    wanted: int | None  # tokens that it may generate, before limits by a budget
    counted: bool = False  # as a call, in budgets and in `Spent`
    ticket: "Ticket[_Job] | None" = None  # of its current turn
    outcome: Thought | CallError | None = None
    holds: bool = False  # a place at the provider
    since: float = 0.0  # when it got the place
    worked: float = 0.0  # seconds that it held a place in earlier turns
    turn: trio.Event | None = None  # set for its next turn, after it has stepped aside
    refused: CallError | None = None  # raised instead of that turn
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    done: trio.Event = field(factory=trio.Event)

    def forget(self) -> None:
        """Break the reference cycle with the ticket: a request may have 16 MiB, too much to leave to the collector."""
        self.ticket = self.asked.on_usage = None


class Line:
    """One per kernel. :meth:`serve` is its worker; at most ``concurrency`` requests are in flight."""

    def __init__(self, settings: LLMSettings, client: ProviderClient, budgets: Budgets, model: str) -> None:
        """``model`` is used for requests that name none."""
        self.model = model
        self._client = client
        client.on_model_changed = self._look_at
        self._budgets = budgets
        self._free = trio.Semaphore(settings.concurrency)
        self._queue: FairQueue[_Job] = FairQueue(settings.per_agent, settings.in_all)
        self._bell = trio.Event()  # set when a request arrives
        self._granted = 0  # reservations that aren't settled
        self._settled = trio.Event()  # set and replaced when a reservation is settled
        self._in_flight: Counter[Path] = Counter()
        self._aside: Counter[Path] = Counter()  # requests neither in the queue nor in flight at the moment
        self._spent: dict[Path, Spent] = {}
        self._memory = RequestMemory()
        self._weights: dict[Path, float] = {}
        now = trio.current_time()
        self._marks = [(now, self._queue.mark())] * 2

    async def think(
        self, queue_path: QueuePath, question: Question, said: Callable[[str], None] | None = None
    ) -> Thought:
        """Return the model's answer to a request; ``said`` is called with each piece of its text as it arrives.

        Raises ``Busy``, ``QuotaExceeded``, ``BadRequest``, ``Unavailable`` or ``Timeout``.
        """
        check(question)
        account, now, tokens = family(queue_path), trio.current_time(), guessed_input(question)
        self._budgets.check(queue_path, question.model, tokens, time.time())
        with self._memory.hold(account, question.size):
            large = question.size > AT_ONCE
            sent = await trio.to_thread.run_sync(measure_request, question) if large else measure_request(question)
            asked = ActiveRequest(
                question, tokens, account, said, deadline=trio.current_effective_deadline(), sent=sent
            )
            self._client.check_available(asked)
            self._weigh(queue_path)
            job = _Job(queue_path, asked, now, question.max_tokens)
            job.ticket = ticket = self._queue.put(names(queue_path), job, weighed(tokens), now, lane=question.model)
            asked.on_usage = partial(self._charge, job)
            self._bell.set()
            try:
                await job.done.wait()
            finally:
                if self._queue.withdraw(ticket):
                    job.forget()
                else:
                    job.scope.cancel()
        assert job.outcome is not None, "who is cancelled doesn't get here"
        if isinstance(job.outcome, CallError):
            raise job.outcome
        return job.outcome

    async def prepare(self) -> None:
        """Connect to the provider: a vendor's SDK is loaded in a thread. Requests that arrive meanwhile wait for it."""
        await self._client.prepare()

    async def serve(self) -> None:
        """Send requests to the provider until cancelled."""
        try:
            async with trio.open_nursery() as jobs:
                while True:
                    job = await self._next()
                    if job.turn is None:
                        jobs.start_soon(self._work, job)
                    else:
                        job.turn.set()
        finally:
            with trio.move_on_after(CLOSING, shield=True):
                await self._client.aclose()

    async def _next(self) -> _Job:
        """The next request, as soon as its model accepts requests and there is a place for it."""
        while True:
            deadline = self._reopen()
            if not self._queue.ready:
                self._bell = trio.Event()
                with trio.CancelScope(deadline=deadline):
                    await self._bell.wait()
                continue
            await self._free.acquire()
            self._reopen()
            ticket = self._queue.take(trio.current_time())
            if ticket is not None:
                ticket.item.holds = True
                ticket.item.since = trio.current_time()
                self._in_flight[ticket.path] += 1
                return ticket.item
            self._free.release()  # the waiting requests were withdrawn meanwhile

    def _reopen(self) -> float:
        """Open the lanes of models that accept requests again; returns when to do so next, on Trio's clock."""
        first = math.inf
        for model in list(self._queue.closed):
            opens = self._client.available_at(model)
            if opens is None:
                self._queue.open(model)
            else:
                first = min(first, opens)
        return first

    def _look_at(self, model: str) -> None:
        """Open or close a model's lane to match its gate, and refuse the requests that can't wait for it."""
        if self._client.available_at(model) is None:
            self._queue.open(model)
        else:
            self._queue.close(model)
            for ticket in self._queue.of(model):
                try:
                    self._client.check_available(ticket.item.asked)
                except CallError as error:
                    self._turn_away(ticket, error)
        self._bell.set()

    def _turn_away(self, ticket: Ticket[_Job], error: CallError) -> None:
        """End a waiting request with an error."""
        self._queue.withdraw(ticket)
        job = ticket.item
        if job.turn is not None:  # its task waits for the turn
            job.refused = error
            job.turn.set()
        else:
            job.outcome = error
            job.forget()
            job.done.set()

    async def _work(self, job: _Job) -> None:
        try:
            with job.scope:
                job.outcome = await self._answer(job)
        except CallError as error:
            job.outcome = error
        except Exception as bug:
            job.outcome = internal(bug, "the line to the model")
        finally:
            self._leave_place(job)
            job.forget()
            job.done.set()

    async def _answer(self, job: _Job) -> Thought:
        answer = await self._client.send(job.asked, partial(self._turn, job), partial(self._pause, job))
        now = trio.current_time()
        latency = job.worked + now - job.since
        return Thought(answer, now - job.came - latency, latency, job.asked.bound)

    @contextlib.asynccontextmanager
    async def _turn(self, job: _Job) -> AsyncIterator[None]:
        """Reserve budget for one attempt; its usage is charged and settled however it ends."""
        asked = job.asked
        grant = await self._reserve(job)
        asked.question = evolve(asked.question, max_tokens=grant.max_tokens)
        attempts = asked.attempts
        try:
            yield
        finally:
            assert job.ticket is not None, "it is in flight"
            used = Usage()
            if asked.attempts > attempts:
                used = asked.last_usage
                self._charge(job)
            else:
                self._queue.charge(job.ticket, LEAST)  # its model was closed meanwhile
            calls = int(used.total > 0 and not job.counted)  # not a call if nothing was used
            job.counted = job.counted or bool(calls)
            self._budgets.settle(grant, used, calls, time.time())
            self._note_spent(names(job.queue_path), calls, used)
            self._give_back()

    async def _reserve(self, job: _Job) -> Grant:
        """Reserve budget. If only reservations of other requests are in the way, wait until they are settled."""
        asked, model, calls = job.asked, job.asked.question.model, int(not job.counted)
        while True:
            self._granted += 1
            try:
                return await self._budgets.reserve(job.queue_path, model, asked.input, job.wanted, time.time(), calls)
            except QuotaExceeded:
                self._granted -= 1  # `_settled` isn't set: two waiting requests would wake each other forever
                self._budgets.check(job.queue_path, model, asked.input, time.time(), calls)
                if not self._granted:  # reserved by a kernel that was killed: never settled
                    raise
            except BaseException:
                self._give_back()
                raise
            assert job.ticket is not None, "it is in flight"
            self._queue.charge(job.ticket, LEAST)  # no request was sent in this turn
            await self._step_aside(job, self._settled.wait)

    def _note_spent(self, path: Path, calls: int, used: Usage) -> None:
        before = self._spent.pop(path, Spent())
        self._spent[path] = Spent(before.calls + calls, before.usage + used)
        if len(self._spent) > REMEMBERED:
            del self._spent[next(iter(self._spent))]  # the agent with the oldest last request

    def _give_back(self) -> None:
        """A reservation has ended; requests that wait for budget may try again."""
        self._granted -= 1
        self._settled.set()
        self._settled = trio.Event()

    def _charge(self, job: _Job) -> None:
        """Charge what the attempt has used, or the time it held the provider without an answer: the larger of both."""
        asked = job.asked
        assert job.ticket is not None, "it is in flight"
        self._queue.charge(
            job.ticket, max(cost(asked.last_usage, asked.input), weighed(0, asked.failed_seconds * HELD))
        )

    async def _pause(self, job: _Job, seconds: float) -> None:
        """Wait until a request may be sent again: in the queue if its model is paused, else for ``seconds``."""
        closed = job.asked.question.model in self._queue.closed
        await self._step_aside(job, trio.lowlevel.checkpoint if closed else partial(trio.sleep, seconds))

    async def _step_aside(self, job: _Job, wait: Callable[[], Awaitable[None]]) -> None:
        """Give up the place at the provider until ``wait`` returns; then queue again and pay for it like any other."""
        self._leave_place(job)
        with self._counted_aside(names(job.queue_path)):
            await wait()
        self._client.check_available(job.asked)
        job.turn = turn = trio.Event()
        cost, lane = weighed(job.asked.input), job.asked.question.model
        job.ticket = ticket = self._queue.put(
            names(job.queue_path), job, cost, trio.current_time(), lane=lane, again=True
        )
        self._bell.set()
        try:
            await turn.wait()
        finally:
            self._queue.withdraw(ticket)
        if job.refused is not None:
            raise job.refused

    @contextlib.contextmanager
    def _counted_aside(self, path: Path) -> Iterator[None]:
        self._aside[path] += 1
        try:
            yield
        finally:
            self._aside -= Counter([path])

    def _leave_place(self, job: _Job) -> None:
        if job.holds:
            job.holds = False
            job.worked += trio.current_time() - job.since
            self._in_flight -= Counter([names(job.queue_path)])
            self._free.release()

    def leave(self, queue_path: QueuePath) -> None:
        """Remove an agent that has ended for good; its name will not be used again."""
        self._queue.remove(names(queue_path))
        self._weights.pop(names(queue_path), None)

    def places(self) -> Mapping[Path, Place]:
        """State of every agent that has requests waiting or in flight."""
        return places(self._queue, self._aside, self._in_flight, self._client.unavailable_models())

    @property
    def provider(self) -> str:
        """The name of the provider."""
        return self._client.name

    def models(self) -> Sequence[ModelState]:
        """States of the default model and of all models that are paused or down."""
        states = self._client.unavailable_models()
        known = any(state.model == self.model for state in states)
        return states if known or not self.model else [ModelState(self.model), *states]

    def waits(self, queue_path: QueuePath) -> Waits | None:
        """How long the agent's last requests waited."""
        return self._queue.waits(names(queue_path))

    def spent(self, queue_path: QueuePath) -> Spent:
        return self._spent.get(names(queue_path), Spent())

    def standing(self, queue_path: QueuePath) -> Sequence[BudgetState]:
        """What is left of every budget that applies to a queue_path, the outermost first."""
        return self._budgets.standing(queue_path, time.time())

    @property
    def depth(self) -> int:
        """How many requests wait."""
        return len(self._queue) + self._aside.total()

    @property
    def in_flight(self) -> int:
        return self._in_flight.total()

    def fairness(self) -> float:
        """Jain's index of the agents that have had requests waiting all through the last one to two minutes.

        Each agent's share is relative to its weight: 1 is entirely fair, 1/n means that one of n got everything.
        """
        now = trio.current_time()
        if now - self._marks[1][0] >= LOOK_BACK:
            self._marks = [self._marks[1], (now, self._queue.mark())]
        return self._queue.fairness(self._marks[0][1])

    def _weigh(self, queue_path: QueuePath) -> None:
        for depth, account in enumerate(queue_path, 1):
            path = names(queue_path[:depth])
            if self._weights.get(path, 1.0) != account.share.weight:
                self._queue.weigh(path, account.share.weight)
                self._weights[path] = account.share.weight


def check(question: Question) -> None:
    """Refuse a request that no provider could answer. Without a provider the model's name is empty."""
    if (question.model and not MODEL.fullmatch(question.model)) or ".." in question.model:
        raise BadRequest(f"model: expected a name of letters, digits and . _ - : / @ +, got {question.model[:80]!r}")
    if question.parts > MOST_PARTS:
        raise BadRequest(f"messages: expected at most {MOST_PARTS} messages, images, tools and calls in all")


def names(queue_path: QueuePath) -> Path:
    return tuple(account.name for account in queue_path)


def family(queue_path: QueuePath) -> str:
    """The outermost account below the kernel's. Its descendants are limited together, because they may act together."""
    return queue_path[min(1, len(queue_path) - 1)].name


def cost(used: Usage, least: int) -> float:
    """What the fair queue charges: at least the input, or an agent with only failing requests would come first."""
    return weighed(max(used.input, least), used.generated)
