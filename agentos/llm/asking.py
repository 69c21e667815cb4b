"""One question put to the provider until it is answered: deadlines, retries, and pauses of a model."""

import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from random import Random

import trio
from attrs import Factory, define, evolve, field

from agentos_sdk.errors import BadRequest, CallError, Timeout, Unavailable

from .claims import Sent, bounded, measured, utf8_length
from .gates import Gate, Gates, ModelState
from .provider import (
    CHARACTERS_PER_TOKEN,
    Answer,
    Delta,
    Failing,
    Provider,
    ProviderError,
    Question,
    Rejected,
    SlowDown,
    Usage,
    guessed,
)
from .retry import LOOK_AGAIN, State, pause
from .settings import Retry, Timeouts

log = logging.getLogger(__name__)

OFTEN = 60.0  # seconds between two notes of the same trouble
LONGEST = 16 << 20  # characters of one answer
Connect = Callable[[], Awaitable[Provider]]


class Stalled(Failing):
    """The provider took the question and then said nothing for too long."""


@define(eq=False)
class Asked:
    """A question under way, and what it has used so far.

    ``deadline`` is that of the call, and ``patience`` the end of the time in which it may meet 429, both on Trio's
    clock. ``said`` is told each piece of text as it comes; where it is ``None`` nobody has heard the beginning of an
    answer that breaks off, and so the question can be put once more.
    """

    question: Question
    input: int  # tokens, guessed
    party: str  # whose it is
    sent: Sent = field(default=Factory(lambda self: measured(self.question), takes_self=True), kw_only=True)
    said: Callable[[str], None] | None = None
    changed: Callable[[], None] | None = None  # told when `present` has grown
    deadline: float = math.inf
    patience: float = math.inf
    attempts: int = 0
    failures: int = 0  # of these, without those that met 429
    held: float = 0.0  # seconds of the last attempt, if it came to nothing
    _earlier: Usage = Usage()
    _ended: Usage = Usage()
    _under_way: bool = False
    bound: str | None = None  # for the audit log: what was claimed and charged, where that is not the same
    _heard: bool = False  # something of the present attempt
    _characters: int = 0
    _unseen: int = 0
    _received: int = 0  # bytes
    _counted: Usage | None = None

    @property
    def used(self) -> Usage:
        """By all attempts together."""
        return self._earlier + self.present

    @property
    def present(self) -> Usage:
        """By the last attempt. One that is under way, or was aborted, costs its input and what had arrived."""
        return self._arrived() if self._under_way else self._ended

    @property
    def final(self) -> bool:
        """Somebody has heard the beginning."""
        return self.said is not None and self._characters > 0

    def begin(self) -> None:
        self._earlier, self._ended = self.used, Usage()
        self.attempts += 1
        self.held = 0.0
        self._under_way, self._heard, self._counted = True, False, None
        self._characters = self._unseen = self._received = 0

    def hear(self, delta: Delta) -> None:
        self._heard = True
        self._characters += len(delta.text)
        self._unseen += delta.unseen
        self._received += utf8_length(delta.text) + delta.unseen
        self._counted = delta.usage or self._counted
        if self.changed is not None:
            self.changed()
        if delta.text and self.said is not None:
            self.said(delta.text)

    @property
    def most(self) -> int:
        """Characters that an answer may have: many more than the provider was told, if it was told a bound."""
        tokens = self.question.max_tokens
        return (
            LONGEST if tokens is None else min(LONGEST, 100 * CHARACTERS_PER_TOKEN + 4 * CHARACTERS_PER_TOKEN * tokens)
        )

    @property
    def excessive(self) -> bool:
        """A provider doesn't stop."""
        return self._characters + self._unseen > self.most

    @property
    def broke_off(self) -> bool:
        """Something of the present attempt had arrived: so it isn't out of reach."""
        return self._heard

    def answered(self, usage: Usage) -> None:
        """What the provider hasn't counted is guessed."""
        guess = Usage(self.input, guessed(self._characters), guessed(self._unseen))
        generated = usage if usage.generated else guess
        claim = Usage(usage.input or guess.input, generated.output, generated.thinking)
        self._ended = self._believed(claim, usage)
        self._under_way = False

    def failed(self, error: ProviderError) -> None:
        """Who was turned away at once owes nothing."""
        self._ended = self._arrived() if self._heard or isinstance(error, Stalled) else Usage()
        self._under_way = False

    def _arrived(self) -> Usage:
        output, counted = guessed(self._characters), self._counted
        if counted is None:
            return Usage(self.input, output, guessed(self._unseen))
        claim = Usage(counted.input or self.input, max(counted.output, output), counted.thinking)
        return self._believed(claim, counted)

    def _believed(self, claim: Usage, said: Usage) -> Usage:
        """What is charged for a claim; ``said`` is what the provider counted of it itself."""
        charged, bound = bounded(claim, self.sent, self._received, self.question.max_tokens)
        if bound is not None:
            self.bound = f"claimed {said.total} tokens, charged {charged.total} (at {bound})"
        return charged


@contextlib.asynccontextmanager
async def at_once() -> AsyncIterator[None]:
    """A turn that needn't be waited for."""
    yield


@define(eq=False)
class Asking:
    """The way to the provider, one for all questions; the connection is made when the first of them is asked.

    ``name`` is the provider's. ``changed`` is told of a model whose gate may have opened or closed.
    """

    connect: Connect
    retry: Retry
    timeouts: Timeouts
    random: Random = field(factory=Random)
    name: str = "none"
    changed: Callable[[str], None] | None = None
    gates: Gates = field(init=False)
    _noted: tuple[type, float] = (type(None), -math.inf)
    _provider: Provider | None = None
    _connecting: trio.Lock = field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self.gates = Gates(self.retry)

    async def ask(
        self,
        asked: Asked,
        turn: Callable[[], AbstractAsyncContextManager[None]] = at_once,
        step_aside: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> Answer:
        """The answer. What it used stands in ``asked``, however this ends. Raises the ``CallError`` to reply.

        Each attempt is made within a ``turn``. Between two, ``step_aside`` is awaited with the seconds that the
        question is to wait, in which others may be asked.
        """
        try:
            with trio.fail_after(self.timeouts.total):
                provider = await self._reach()
                while True:
                    async with turn():
                        outcome = await self._try(provider, asked)
                    if isinstance(outcome, Answer):
                        return outcome
                    await step_aside(outcome)
        except trio.TooSlowError:
            raise Timeout(f"the model hasn't answered within {self.timeouts.total:g} s (timeouts.total)") from None
        except ProviderError as error:
            self._note(error)
            raise told(error, asked.attempts) from None

    async def prepare(self) -> None:
        """Make the connection before a question needs it. Where that fails, the next question tries again."""
        try:
            await self._reach()
        except ProviderError as error:
            self._note(error)

    async def aclose(self) -> None:
        if self._provider is not None:
            await self._provider.aclose()

    def _note(self, error: ProviderError) -> None:
        """Let the operator know, too, who doesn't ask: what is wrong with the provider, once in a while."""
        now = trio.current_time()
        if not isinstance(error, Rejected) and (type(error) is not self._noted[0] or now - self._noted[1] >= OFTEN):
            self._noted = (type(error), now)
            log.warning("the model's provider: %s", error)

    async def _reach(self) -> Provider:
        async with self._connecting:
            if self._provider is None:
                self._provider = await self.connect()
        return self._provider

    async def _try(self, provider: Provider, asked: Asked) -> Answer | float:
        """The answer, or the seconds until the question may be put again."""
        model, now = asked.question.model, trio.current_time()
        self.check(asked)
        if (opens := self.opens_at(model)) is not None:
            return opens - now if opens < math.inf else LOOK_AGAIN
        with self.gates.entered(model, now) as gate:
            try:
                return await self._attempt(provider, gate, asked)
            except SlowDown as error:
                now = trio.current_time()
                gate.slow_down(error, now, self.random)
                self._note(error)
                asked.patience = min(asked.patience, now + self.retry.patience)
                if asked.final:
                    raise
                self.check(asked)
                return gate.paused_until - now
            except Failing as error:
                asked.failures += 1
                if asked.final or asked.failures == self.retry.attempts or gate.breaker.state is State.OPEN:
                    raise
                return pause(self.retry, asked.failures, error.after, self.random)
            finally:
                self._tell(model)

    async def _attempt(self, provider: Provider, gate: Gate, asked: Asked) -> Answer:
        """Put the question once."""
        with gate.breaker.attempt(trio.current_time(), asked.party) as attempt:
            self._tell(gate.model)  # nobody else is let through while one tries whether it is back
            asked.begin()
            try:
                with holding(asked):
                    answer = await self._listen(provider, asked)
            except Failing as error:
                gate.failed(error)
                asked.failed(error)
                if asked.broke_off:
                    attempt.succeeded()
                else:
                    attempt.failed(trio.current_time())
                raise
            except ProviderError as error:
                asked.failed(error)
                attempt.succeeded()  # it is there, and says no
                raise
            asked.answered(answer.usage)
            attempt.succeeded()
            gate.answered(trio.current_time())
            return evolve(answer, usage=asked.present)

    async def _listen(self, provider: Provider, asked: Asked) -> Answer:
        """An answer of which each piece comes in time."""
        times = self.timeouts

        def hear(delta: Delta) -> None:
            patience.deadline = trio.current_time() + times.idle
            asked.hear(delta)
            if asked.excessive:
                patience.cancel()

        with trio.move_on_after(times.first_token) as patience:
            return await provider.answer(asked.question, hear)
        if asked.excessive:
            raise Rejected(f"it went on and on, beyond {asked.most} characters")
        if asked.broke_off:
            raise Stalled(f"it stopped in the middle of its answer for {times.idle:g} s")
        raise Stalled(f"it didn't begin to answer within {times.first_token:g} s")

    def opens_at(self, model: str) -> float | None:
        """When a question for this model may be asked, on Trio's clock; ``None``: now. See :meth:`Gate.opens_at`."""
        gate = self.gates.get(model)
        return None if gate is None else gate.opens_at(trio.current_time())

    def check(self, asked: Asked) -> None:
        """Raise ``Unavailable`` where a question can't wait until its model may be asked.

        That is so while the model is left alone because it failed so often, and in a pause that ends after the
        question's deadline, or lasts longer than ``retry.patience``.
        """
        now, gate = trio.current_time(), self.gates.get(asked.question.model)
        if gate is None:
            return
        if gate.is_down(now):
            times = f"{self.retry.breaker} times in a row, the last time: {gate.reason}"
            wait = (gate.opens_at(now) or now) - now
            raise Unavailable(f"the model's provider has failed {times}: try again in {math.ceil(wait)} s")
        limit = min(asked.deadline, asked.patience, now + self.retry.patience)
        if gate.paused_until > max(now, limit):
            until = time.time() + gate.paused_until - now
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(math.ceil(until)))
            why = "the call's deadline" if limit == asked.deadline else f"retry.patience ({self.retry.patience:g} s)"
            tried = f" (asked {asked.attempts} times)" if asked.attempts > 1 else ""
            raise Unavailable(
                f"the model's provider wants no question for {gate.model} until {when}, "
                f"which is beyond {why}: {gate.reason}{tried}",
                until=until,
                upstream_status=429,
            )

    def states(self) -> list[ModelState]:
        """Of the models that are paused or down."""
        return [state for state in self.gates.states(trio.current_time()) if state.state != "ok"]

    def _tell(self, model: str) -> None:
        if self.changed is not None:
            self.changed(model)


@contextlib.contextmanager
def holding(asked: Asked) -> Iterator[None]:
    """Count the time of an attempt that comes to nothing."""
    began = trio.current_time()
    try:
        yield
    except BaseException:
        asked.held += trio.current_time() - began
        raise


def told(error: ProviderError, attempts: int) -> CallError:
    """What an agent hears of its question's failure."""
    details = {} if error.status is None else {"upstream_status": error.status}
    if isinstance(error, Rejected):
        return BadRequest(f"the model's provider rejects this: {error}", **details)
    tried = f" (asked {attempts} times)" if attempts > 1 else ""
    return Unavailable(f"the model's provider: {error}{tried}", **details)
