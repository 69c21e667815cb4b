"""The line to the model: agents' questions, fairly chosen, put to the provider by one worker.

A question's way: the budget is looked at, it waits in its agent's own line, it is chosen, room in the budget is
reserved, the provider is asked, and what it used is settled. A question whose model is paused, or that is to be asked
again later, holds neither a place nor a reservation: it waits in its agent's line for another turn. Whoever asked may
go away at any point: then it leaves the line, or the connection to the provider is closed, and only what was used until
then is charged.
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

from agentos.kernel.bugs import internal
from agentos.services.quotas import Standing
from agentos_sdk.errors import BadRequest, CallError, QuotaExceeded

from .asking import Asked, Asking
from .budgets import Budgets, Grant
from .claims import measured
from .fair_queue import LEAST, FairQueue, Path, Ticket, Waits, weighed
from .gates import ModelState
from .memory import Memory
from .provider import Answer, Question, Usage, guessed_input
from .settings import LLMSettings, Seat

LOOK_BACK = 60.0  # seconds, at least, over which fairness is told
MOST_PARTS = 2000  # of a question: each takes the vendor's SDK half a millisecond
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")  # it becomes a part of a URL
HELD = 50.0  # tokens a second that count as generated where nobody can tell: the provider was kept from others
AT_ONCE = 64 << 10  # bytes of a question that are measured in the event loop
REMEMBERED = 4096  # names of which is known what they have spent
CLOSING = 2.0  # seconds that the provider's connections get to be closed in order


@frozen
class Thought:
    """An answer; seconds that it waited, and that the provider worked on it.

    ``bound`` says, for the audit log, that the tokens charged are not those that the provider claims, and why.
    """

    answer: Answer
    queued: float
    latency: float
    bound: str | None = None


@frozen
class Place:
    """Where an agent stands in the line. ``position`` 1: its first question is the next to be chosen.

    ``paused`` of those that wait are for models that can't be asked at present; ``models`` says which and why.
    """

    waiting: int = 0
    in_flight: int = 0
    position: int | None = None
    paused: int = 0
    models: Sequence[ModelState] = ()


@frozen
class Spent:
    """What somebody has had of the model since the kernel began: questions that were asked, and their tokens."""

    calls: int = 0
    usage: Usage = Usage()


@define(eq=False)
class _Job:
    seat: Seat
    asked: Asked
    came: float
    wanted: int | None  # tokens that it may generate, before a budget cut it
    counted: bool = False  # as a call, in budgets and in what was spent
    ticket: "Ticket[_Job] | None" = None  # of its present turn
    outcome: Thought | CallError | None = None
    holds: bool = False  # a place at the provider
    since: float = 0.0  # when it got it
    worked: float = 0.0  # seconds that it had one before
    turn: trio.Event | None = None  # its next, after it has stepped aside
    refused: CallError | None = None  # instead of that turn
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    done: trio.Event = field(factory=trio.Event)

    def forget(self) -> None:
        """It and its ticket hold each other, and a question may have 16 MiB: too much to wait for the collector."""
        self.ticket = self.asked.changed = None


class Line:
    """One for a kernel. Its worker is :meth:`serve`; as many questions as ``concurrency`` says are in flight."""

    def __init__(self, settings: LLMSettings, asking: Asking, budgets: Budgets, model: str) -> None:
        """``model`` is asked where a question names none."""
        self.model = model
        self._asking = asking
        asking.changed = self._look_at
        self._budgets = budgets
        self._free = trio.Semaphore(settings.concurrency)
        self._queue: FairQueue[_Job] = FairQueue(settings.per_agent, settings.in_all)
        self._bell = trio.Event()  # somebody came
        self._granted = 0  # reservations that aren't settled
        self._settled = trio.Event()  # one of them was; then made anew
        self._in_flight: Counter[Path] = Counter()
        self._aside: Counter[Path] = Counter()  # neither in the queue nor in flight for the moment
        self._spent: dict[Path, Spent] = {}
        self._memory = Memory()
        self._weights: dict[Path, float] = {}
        now = trio.current_time()
        self._marks = [(now, self._queue.mark())] * 2

    async def think(self, seat: Seat, question: Question, said: Callable[[str], None] | None = None) -> Thought:
        """The model's answer to somebody's question; ``said`` is told each piece of its text as it comes.

        Raises ``Busy``, ``QuotaExceeded``, ``BadRequest``, ``Unavailable`` or ``Timeout``.
        """
        check(question)
        party, now, tokens = family(seat), trio.current_time(), guessed_input(question)
        self._budgets.check(seat, question.model, tokens, time.time())
        with self._memory.held(party, question.size):
            large = question.size > AT_ONCE
            sent = await trio.to_thread.run_sync(measured, question) if large else measured(question)
            asked = Asked(question, tokens, party, said, deadline=trio.current_effective_deadline(), sent=sent)
            self._asking.check(asked)
            self._weigh(seat)
            job = _Job(seat, asked, now, question.max_tokens)
            job.ticket = ticket = self._queue.put(names(seat), job, weighed(tokens), now, lane=question.model)
            asked.changed = partial(self._charge, job)
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
        """Load what asking takes, a vendor's SDK, in a thread; questions that come meanwhile wait for it."""
        await self._asking.prepare()

    async def serve(self) -> None:
        """Put questions to the provider, until cancelled."""
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
                await self._asking.aclose()

    async def _next(self) -> _Job:
        """The question whose turn it is, as soon as its model may be asked and there is a place for it."""
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
            self._free.release()  # whoever waited has left meanwhile

    def _reopen(self) -> float:
        """Open the lanes of models that may be asked again; when to do so next, on Trio's clock."""
        first = math.inf
        for model in list(self._queue.closed):
            opens = self._asking.opens_at(model)
            if opens is None:
                self._queue.open(model)
            else:
                first = min(first, opens)
        return first

    def _look_at(self, model: str) -> None:
        """Open or close a model's lane, as its gate is now, and refuse the questions that can't wait for it."""
        if self._asking.opens_at(model) is None:
            self._queue.open(model)
        else:
            self._queue.close(model)
            for ticket in self._queue.of(model):
                try:
                    self._asking.check(ticket.item.asked)
                except CallError as error:
                    self._turn_away(ticket, error)
        self._bell.set()

    def _turn_away(self, ticket: Ticket[_Job], error: CallError) -> None:
        """End a question that waits."""
        self._queue.withdraw(ticket)
        job = ticket.item
        if job.turn is not None:  # its task waits for that
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
        answer = await self._asking.ask(job.asked, partial(self._turn, job), partial(self._pause, job))
        now = trio.current_time()
        latency = job.worked + now - job.since
        return Thought(answer, now - job.came - latency, latency, job.asked.bound)

    @contextlib.asynccontextmanager
    async def _turn(self, job: _Job) -> AsyncIterator[None]:
        """Room in the budgets for one attempt; what that used is charged and settled, however it ends."""
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
                used = asked.present
                self._charge(job)
            else:
                self._queue.charge(job.ticket, LEAST)  # its model was closed meanwhile
            calls = int(used.total > 0 and not job.counted)  # what no model has seen is none
            job.counted = job.counted or bool(calls)
            self._budgets.settle(grant, used, calls, time.time())
            self._note_spent(names(job.seat), calls, used)
            self._give_back()

    async def _reserve(self, job: _Job) -> Grant:
        """Room in the budgets. Where only what others have reserved is in the way, it waits until they have settled."""
        asked, model, calls = job.asked, job.asked.question.model, int(not job.counted)
        while True:
            self._granted += 1
            try:
                return await self._budgets.reserve(job.seat, model, asked.input, job.wanted, time.time(), calls)
            except QuotaExceeded:
                self._granted -= 1  # and nobody is told: or two who wait would wake each other for ever
                self._budgets.check(job.seat, model, asked.input, time.time(), calls)
                if not self._granted:  # by a kernel that was killed: nobody will settle that
                    raise
            except BaseException:
                self._give_back()
                raise
            assert job.ticket is not None, "it is in flight"
            self._queue.charge(job.ticket, LEAST)  # nobody was asked in this turn
            await self._step_aside(job, self._settled.wait)

    def _note_spent(self, path: Path, calls: int, used: Usage) -> None:
        before = self._spent.pop(path, Spent())
        self._spent[path] = Spent(before.calls + calls, before.usage + used)
        if len(self._spent) > REMEMBERED:
            del self._spent[next(iter(self._spent))]  # who has asked nothing for the longest time

    def _give_back(self) -> None:
        """A reservation is no more; whoever waits for it may look again."""
        self._granted -= 1
        self._settled.set()
        self._settled = trio.Event()

    def _charge(self, job: _Job) -> None:
        """What the attempt has used, or the time that it has taken from others in vain: whichever is more."""
        asked = job.asked
        assert job.ticket is not None, "it is in flight"
        self._queue.charge(job.ticket, max(cost(asked.present, asked.input), weighed(0, asked.held * HELD)))

    async def _pause(self, job: _Job, seconds: float) -> None:
        """Wait until a question may be put again: in the line where its model is paused, else for so many seconds."""
        closed = job.asked.question.model in self._queue.closed
        await self._step_aside(job, trio.lowlevel.checkpoint if closed else partial(trio.sleep, seconds))

    async def _step_aside(self, job: _Job, wait: Callable[[], Awaitable[None]]) -> None:
        """Let others be asked while a question can't be; then it waits for its turn like any other, and pays for it."""
        self._leave_place(job)
        with self._counted_aside(names(job.seat)):
            await wait()
        self._asking.check(job.asked)
        job.turn = turn = trio.Event()
        cost, lane = weighed(job.asked.input), job.asked.question.model
        job.ticket = ticket = self._queue.put(names(job.seat), job, cost, trio.current_time(), lane=lane, again=True)
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
            self._in_flight -= Counter([names(job.seat)])
            self._free.release()

    def leave(self, seat: Seat) -> None:
        """Somebody is gone for good, and so is its name."""
        self._queue.remove(names(seat))
        self._weights.pop(names(seat), None)

    def places(self) -> Mapping[Path, Place]:
        """Where everybody stands who has something in the line or in flight."""
        positions: dict[Path, int] = {}
        waiting: Counter[Path] = Counter()
        for position, ticket in enumerate(self._queue.order(), 1):
            positions.setdefault(ticket.path, position)
            waiting[ticket.path] += 1
        paused: dict[Path, Counter[str]] = {}
        for ticket in self._queue.parked():
            paused.setdefault(ticket.path, Counter())[ticket.lane] += 1
            waiting[ticket.path] += 1
        states = {state.model: state for state in self._asking.states()}
        return {
            path: Place(
                waiting[path] + self._aside[path],
                self._in_flight[path],
                positions.get(path),
                paused.get(path, Counter()).total(),
                tuple(states.get(model, ModelState(model)) for model in paused.get(path, ())),
            )
            for path in waiting.keys() | self._in_flight.keys() | self._aside.keys()
        }

    @property
    def provider(self) -> str:
        """The name of the provider that is asked."""
        return self._asking.name

    def models(self) -> Sequence[ModelState]:
        """The kernel's own model, and all that are paused or down."""
        states = self._asking.states()
        known = any(state.model == self.model for state in states)
        return states if known or not self.model else [ModelState(self.model), *states]

    def waits(self, seat: Seat) -> Waits | None:
        """How long its last questions waited."""
        return self._queue.waits(names(seat))

    def spent(self, seat: Seat) -> Spent:
        return self._spent.get(names(seat), Spent())

    def standing(self, seat: Seat) -> Sequence[Standing]:
        """What is left of every budget that concerns somebody, the outermost first."""
        return self._budgets.standing(seat, time.time())

    @property
    def depth(self) -> int:
        """How many questions wait."""
        return len(self._queue) + self._aside.total()

    @property
    def in_flight(self) -> int:
        return self._in_flight.total()

    def fairness(self) -> float:
        """Jain's index over what those got who have had questions waiting all through the last minute or two, each
        relative to its weight: 1 is entirely fair, 1/n means that one of n got everything."""
        now = trio.current_time()
        if now - self._marks[1][0] >= LOOK_BACK:
            self._marks = [self._marks[1], (now, self._queue.mark())]
        return self._queue.fairness(self._marks[0][1])

    def _weigh(self, seat: Seat) -> None:
        for depth, party in enumerate(seat, 1):
            path = names(seat[:depth])
            if self._weights.get(path, 1.0) != party.share.weight:
                self._queue.weigh(path, party.share.weight)
                self._weights[path] = party.share.weight


def check(question: Question) -> None:
    """Refuse what no provider could be asked; without any, there is no model's name."""
    if (question.model and not MODEL.fullmatch(question.model)) or ".." in question.model:
        raise BadRequest(f"model: expected a name of letters, digits and . _ - : / @ +, got {question.model[:80]!r}")
    if question.parts > MOST_PARTS:
        raise BadRequest(f"messages: expected at most {MOST_PARTS} messages, images, tools and calls in all")


def names(seat: Seat) -> Path:
    return tuple(party.name for party in seat)


def family(seat: Seat) -> str:
    """The outermost that isn't everybody: what one of them does, all of them may be doing together."""
    return seat[min(1, len(seat) - 1)].name


def cost(used: Usage, least: int) -> float:
    """What the fair choice charges: at least the question's length, or who is always turned away would come first."""
    return weighed(max(used.input, least), used.generated)
