"""One question put to the provider until it is answered: deadlines, retries, and slowing down when told to."""

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from random import Random

import trio
from attrs import define, field

from agentos_sdk.errors import BadRequest, CallError, Timeout, Unavailable

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
from .retry import Breaker, State, pause
from .settings import Retry, Timeouts

log = logging.getLogger(__name__)

OFTEN = 60.0  # seconds between two notes of the same trouble
LONGEST = 16 << 20  # characters of one answer
Connect = Callable[[], Awaitable[Provider]]


class Stalled(Failing):
    """The provider took the question and then said nothing for too long."""


@define(eq=False)
class Asked:
    """A question under way, and what it has used so far, all attempts together.

    ``said`` is told each piece of text as it comes; where it is ``None`` nobody has heard the beginning of an answer
    that breaks off, and so the question can be put once more.
    """

    question: Question
    input: int  # tokens, guessed
    party: str  # whose it is
    said: Callable[[str], None] | None = None
    changed: Callable[[], None] | None = None  # told when `used` has grown
    attempts: int = 0
    held: float = 0.0  # seconds of attempts that came to nothing
    _earlier: Usage = Usage()
    _under_way: bool = False
    _heard: bool = False  # something of the present attempt
    _characters: int = 0
    _unseen: int = 0
    _counted: Usage | None = None

    @property
    def used(self) -> Usage:
        """An attempt that is under way, or was aborted, costs its input and what had arrived."""
        return self._earlier + self._present() if self._under_way else self._earlier

    @property
    def final(self) -> bool:
        """Somebody has heard the beginning."""
        return self.said is not None and self._characters > 0

    def begin(self) -> None:
        self.attempts += 1
        self._under_way, self._heard, self._characters, self._unseen, self._counted = True, False, 0, 0, None

    def hear(self, delta: Delta) -> None:
        self._heard = True
        self._characters += len(delta.text)
        self._unseen += delta.unseen
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
        usage = Usage(usage.input or guess.input, generated.output, generated.thinking)
        self._earlier, self._under_way = self._earlier + usage, False

    def failed(self, error: ProviderError) -> None:
        """Who was turned away at once owes nothing."""
        cost = self._present() if self._heard or isinstance(error, Stalled) else Usage()
        self._earlier, self._under_way = self._earlier + cost, False

    def _present(self) -> Usage:
        output, counted = guessed(self._characters), self._counted
        if counted is None:
            return Usage(self.input, output, guessed(self._unseen))
        return Usage(counted.input or self.input, max(counted.output, output), counted.thinking)


@define(eq=False)
class Asking:
    """The way to the provider, one for all questions; the connection is made when the first of them is asked."""

    connect: Connect
    retry: Retry
    timeouts: Timeouts
    random: Random = field(factory=Random)
    not_before: float = -math.inf  # trio's clock: until then the provider wants nobody to ask
    breaker: Breaker = field(init=False)
    _slowed: int = 0  # how often in a row it said so, to whomever
    _last: ProviderError | None = None  # failure
    _noted: tuple[type, float] = (type(None), -math.inf)
    _provider: Provider | None = None
    _connecting: trio.Lock = field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self.breaker = Breaker(self.retry)

    async def ask(self, asked: Asked, step_aside: Callable[[float], Awaitable[None]] = trio.sleep) -> Answer:
        """The answer. What it used stands in ``asked``, however this ends. Raises the ``CallError`` to reply.

        ``step_aside`` is awaited for the seconds of a pause in which others may be asked.
        """
        try:
            with trio.fail_after(self.timeouts.total):
                return await self._insist(await self._reach(), asked, step_aside)
        except trio.TooSlowError:
            raise Timeout(f"the model hasn't answered within {self.timeouts.total:g} s (timeouts.total)") from None
        except ProviderError as error:
            self._note(error)
            raise told(error, asked.attempts) from None

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

    async def _insist(self, provider: Provider, asked: Asked, step_aside: Callable[[float], Awaitable[None]]) -> Answer:
        patience, failures = math.inf, 0
        while True:
            try:
                return await self._attempt(provider, asked)
            except SlowDown as error:
                if trio.current_time() >= self.not_before:  # else it is what others in flight have heard already
                    self._slowed += 1
                delay = pause(self.retry, self._slowed, error.after, self.random)
                self.not_before = max(self.not_before, trio.current_time() + delay)
                self._note(error)
                patience = min(patience, trio.current_time() + self.retry.patience)
                if asked.final or self.not_before > patience:
                    raise
                await trio.sleep_until(self.not_before)
            except Failing as error:
                failures += 1
                if asked.final or failures == self.retry.attempts or self.breaker.state is State.OPEN:
                    raise
                await step_aside(pause(self.retry, failures, error.after, self.random))

    async def _attempt(self, provider: Provider, asked: Asked) -> Answer:
        """Put the question once, if anybody is let through at present."""
        while (wait := self.breaker.refuses(trio.current_time())) is not None:
            self.check()
            await trio.sleep(wait)  # somebody else finds out whether it is back
        with self.breaker.attempt(trio.current_time(), asked.party) as attempt:
            asked.begin()
            try:
                with holding(asked):
                    answer = await self._listen(provider, asked)
            except Failing as error:
                self._last = error
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
            self._slowed = 0
            return answer

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

    def check(self) -> None:
        """Raise ``Unavailable`` while the provider is left alone because it failed so often."""
        wait = self.breaker.refuses(trio.current_time())
        if wait is not None and self.breaker.state is State.OPEN:
            times = f"{self.retry.breaker} times in a row, the last time: {self._last}"
            raise Unavailable(f"the model's provider has failed {times}: try again in {math.ceil(wait)} s")


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
    if isinstance(error, Rejected):
        return BadRequest(f"the model's provider rejects this: {error}")
    tried = f" (asked {attempts} times)" if attempts > 1 else ""
    return Unavailable(f"the model's provider: {error}{tried}")
