"""One request sent to the provider until it is answered: deadlines, retries, and pauses of a model."""

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

from .claims import Bound, Sent, bounded, measured, utf8_length
from .gates import Gate, Gates, ModelState
from .providers.provider import (
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

OFTEN = 60.0  # seconds between two log messages about the same error
LONGEST = 16 << 20  # characters of one answer
Connect = Callable[[], Awaitable[Provider]]


class Stalled(Failing):
    """The provider accepted the request and then sent nothing for too long."""


@define(eq=False)
class Asked:
    """A request under way, and what it has used so far.

    ``deadline`` is the call's deadline. ``patience`` is the end of the time in which retries after HTTP 429 are
    allowed. Both are on Trio's clock. ``said`` is called with each piece of text as it arrives. If ``said`` is
    ``None``, no part of an answer that breaks off was delivered, so the request can be sent again.
    """

    question: Question
    input: int  # tokens, estimated
    account: str  # the outermost account below that of all agents; see `line.family`
    sent: Sent = field(default=Factory(lambda self: measured(self.question), takes_self=True), kw_only=True)
    said: Callable[[str], None] | None = None
    changed: Callable[[], None] | None = None  # called when `present` has grown
    deadline: float = math.inf
    patience: float = math.inf
    attempts: int = 0
    failures: int = 0  # of these attempts, not counting HTTP 429
    held: float = 0.0  # seconds that the last attempt took, if it failed
    _earlier: Usage = Usage()
    _ended: Usage = Usage()
    _under_way: bool = False
    bound: str | None = None  # for the audit log: tokens claimed and charged, if they differ
    _heard: bool = False  # whether anything of the current attempt has arrived
    _characters: int = 0
    _unseen: int = 0
    _received: int = 0  # bytes
    _counted: Usage | None = None

    @property
    def used(self) -> Usage:
        """Usage of all attempts together."""
        return self._earlier + self.present

    @property
    def present(self) -> Usage:
        """Usage of the last attempt. While it runs, or if aborted: its input and the output that has arrived."""
        return self._believed(self._arrived())[0] if self._under_way else self._ended

    @property
    def final(self) -> bool:
        """Whether part of the answer has been delivered, so that the request can't be sent again."""
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
        """Limit of the answer's characters: well above ``max_tokens``, if the request has that."""
        tokens = self.question.max_tokens
        return (
            LONGEST if tokens is None else min(LONGEST, 100 * CHARACTERS_PER_TOKEN + 4 * CHARACTERS_PER_TOKEN * tokens)
        )

    @property
    def excessive(self) -> bool:
        """Whether the answer is longer than :attr:`most`."""
        return self._characters + self._unseen > self.most

    @property
    def broke_off(self) -> bool:
        """Whether part of the current attempt had arrived: then the provider is reachable."""
        return self._heard

    def answered(self, usage: Usage) -> None:
        """Record the final usage; counts that the provider didn't send are estimated."""
        guess = Usage(self.input, guessed(self._characters), guessed(self._unseen))
        generated = usage if usage.generated else guess
        self._end(Usage(usage.input or guess.input, generated.output, generated.thinking), usage)

    def failed(self, error: ProviderError) -> None:
        """Record a failed attempt; one that was refused at once costs nothing."""
        if self._heard or isinstance(error, Stalled):
            self._end(self._arrived(), self._counted or Usage())
        self._under_way = False

    def _end(self, claim: Usage, said: Usage) -> None:
        """End the attempt with a claimed usage; ``said`` is the usage that the provider reported."""
        self._ended, bound = self._believed(claim)
        self._under_way = False
        if bound is not None and said.total:
            self.bound = f"claimed {said.total} tokens, charged {self._ended.total} (at {bound})"

    def _arrived(self) -> Usage:
        output, counted = guessed(self._characters), self._counted
        if counted is None:
            return Usage(self.input, output, guessed(self._unseen))
        return Usage(counted.input or self.input, max(counted.output, output), counted.thinking)

    def _believed(self, claim: Usage) -> tuple[Usage, Bound | None]:
        """Limit a claim to what is charged for it; and which bound was used."""
        return bounded(claim, self.sent, self._received, self.question.max_tokens)


@contextlib.asynccontextmanager
async def at_once() -> AsyncIterator[None]:
    """The default ``turn``: doesn't wait."""
    yield


@define(eq=False)
class Asking:
    """The connection to the provider, shared by all requests; opened for the first of them.

    ``name`` is the provider's name. ``changed`` is called with a model's name when its gate may have opened or
    closed.
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
        """Return the answer. ``asked`` records the usage, also after a failure. Raises the ``CallError`` to reply.

        Each attempt is made within a ``turn``. Between two attempts ``step_aside`` is awaited with the seconds that
        this request has to wait; other requests may be sent meanwhile.
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
        """Open the connection before a request needs it. If that fails, the next request tries again."""
        try:
            await self._reach()
        except ProviderError as error:
            self._note(error)

    async def aclose(self) -> None:
        if self._provider is not None:
            await self._provider.aclose()

    def _note(self, error: ProviderError) -> None:
        """Log errors of the provider for the operator; the same kind at most once in ``OFTEN`` seconds."""
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
        """Return the answer, or the seconds until the request may be sent again."""
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
        """Send the request once."""
        with gate.breaker.attempt(trio.current_time(), asked.account) as attempt:
            self._tell(gate.model)  # no other request is let through during a probe of the half-open breaker
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
                attempt.succeeded()  # the provider is reachable and refused this request
                raise
            asked.answered(answer.usage)
            attempt.succeeded()
            gate.answered(trio.current_time())
            return evolve(answer, usage=asked.present)

    async def _listen(self, provider: Provider, asked: Asked) -> Answer:
        """Wait for the answer; raises :class:`Stalled` if a piece of it is late."""
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
        """When a request for this model may be sent, on Trio's clock; ``None``: now. See :meth:`Gate.opens_at`."""
        gate = self.gates.get(model)
        return None if gate is None else gate.opens_at(trio.current_time())

    def check(self, asked: Asked) -> None:
        """Raise ``Unavailable`` if a request can't wait until its model accepts requests.

        This is so while the circuit breaker is open, and in a pause that ends after the request's deadline or lasts
        longer than ``retry.patience``.
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
        """States of the models that are paused or down."""
        return [state for state in self.gates.states(trio.current_time()) if state.state != "ok"]

    def _tell(self, model: str) -> None:
        if self.changed is not None:
            self.changed(model)


@contextlib.contextmanager
def holding(asked: Asked) -> Iterator[None]:
    """Add the duration of a failed attempt to ``held``."""
    began = trio.current_time()
    try:
        yield
    except BaseException:
        asked.held += trio.current_time() - began
        raise


def told(error: ProviderError, attempts: int) -> CallError:
    """The ``CallError`` that the agent receives for a provider's error."""
    details = {} if error.status is None else {"upstream_status": error.status}
    if isinstance(error, Rejected):
        return BadRequest(f"the model's provider rejects this: {error}", **details)
    tried = f" (asked {attempts} times)" if attempts > 1 else ""
    return Unavailable(f"the model's provider: {error}{tried}", **details)
