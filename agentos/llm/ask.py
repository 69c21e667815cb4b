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

from agentos.services.events import ModelAvailable, ModelPaused, Publish, discard
from agentos_sdk.errors import BadRequest, CallError, Timeout, Unavailable
from agentos_sdk.values import Usage

from .circuit_breaker import PROBE_POLL, State
from .claims import Bound, RequestSize, limit_claim, measure_request, utf8_length
from .model_availability import ModelAvailabilities, ModelAvailability, ModelState
from .providers.provider import (
    CHARACTERS_PER_TOKEN,
    Answer,
    Delta,
    Failing,
    Provider,
    ProviderError,
    Question,
    RateLimited,
    Rejected,
    ask,
    estimate_tokens,
)
from .retry import retry_delay
from .settings import Retry, Timeouts

log = logging.getLogger(__name__)

LOG_INTERVAL = 60.0  # seconds between two log messages about the same error
MAX_ANSWER = 16 << 20  # characters of one answer
Connect = Callable[[], Awaitable[Provider]]


class Stalled(Failing):
    """The provider accepted the request and then sent nothing for too long."""


@define(eq=False)
class ActiveRequest:
    """A request under way, and what it has used so far.

    ``deadline`` is the call's deadline. ``retry_deadline`` is the end of the time in which retries after HTTP 429 are
    allowed. Both are on Trio's clock. ``on_text`` is called with each piece of text as it arrives. If ``on_text`` is
    ``None``, no part of an answer that breaks off was delivered, so the request can be sent again.
    """

    question: Question
    input: int  # tokens, estimated
    account: str  # the outermost account below that of all agents; see `jobs.outermost_account`
    sent: RequestSize = field(
        default=Factory(lambda self: measure_request(self.question), takes_self=True), kw_only=True
    )
    on_text: Callable[[str], None] | None = None
    on_usage: Callable[[], None] | None = None  # called when `last_usage` has grown
    deadline: float = math.inf
    retry_deadline: float = math.inf
    attempts: int = 0
    failures: int = 0  # of these attempts, not counting HTTP 429
    failed_seconds: float = 0.0  # seconds that the last attempt took, if it failed
    _earlier_usage: Usage = Usage()
    _last_usage: Usage = Usage()
    _running: bool = False
    first_at: float | None = None  # on Trio's clock: when the first piece of the last attempt's answer arrived
    bound: str | None = None  # for the audit log: tokens claimed and charged, if they differ
    _received_any: bool = False  # whether anything of the current attempt has arrived
    _characters: int = 0
    _unseen: int = 0
    _received_bytes: int = 0  # bytes
    _reported_usage: Usage | None = None

    @property
    def total_usage(self) -> Usage:
        """Usage of all attempts together."""
        return self._earlier_usage + self.last_usage

    @property
    def last_usage(self) -> Usage:
        """Usage of the last attempt. While it runs, or if aborted: its input and the output that has arrived."""
        return self._charged_usage(self._estimated_usage())[0] if self._running else self._last_usage

    @property
    def partly_delivered(self) -> bool:
        """Whether part of the answer has been delivered, so that the request can't be sent again."""
        return self.on_text is not None and self._characters > 0

    def begin_attempt(self) -> None:
        self._earlier_usage, self._last_usage = self.total_usage, Usage()
        self.attempts += 1
        self.failed_seconds = 0.0
        self._running, self._received_any, self._reported_usage = True, False, None
        self.first_at = None
        self._characters = self._unseen = self._received_bytes = 0

    def receive(self, delta: Delta) -> None:
        if not self._received_any:
            self._received_any, self.first_at = True, trio.current_time()
        self._characters += len(delta.text)
        self._unseen += delta.unseen
        self._received_bytes += utf8_length(delta.text) + delta.unseen
        self._reported_usage = delta.usage or self._reported_usage
        if self.on_usage is not None:
            self.on_usage()
        if delta.text and self.on_text is not None:
            self.on_text(delta.text)

    @property
    def max_characters(self) -> int:
        """Limit of the answer's characters: well above ``max_tokens``, if the request has that."""
        tokens = self.question.max_tokens
        return (
            MAX_ANSWER
            if tokens is None
            else min(MAX_ANSWER, 100 * CHARACTERS_PER_TOKEN + 4 * CHARACTERS_PER_TOKEN * tokens)
        )

    @property
    def is_too_long(self) -> bool:
        """Whether the answer is longer than :attr:`max_characters`."""
        return self._characters + self._unseen > self.max_characters

    @property
    def has_begun(self) -> bool:
        """Whether part of the current attempt had arrived: then the provider is reachable."""
        return self._received_any

    def record_answer(self, usage: Usage) -> None:
        """Record the final usage; counts that the provider didn't send are estimated."""
        guess = Usage(self.input, estimate_tokens(self._characters), estimate_tokens(self._unseen))
        generated = usage if usage.generated else guess
        self._end_attempt(Usage(usage.input or guess.input, generated.output, generated.thinking), usage)

    def record_failure(self, error: ProviderError) -> None:
        """Record a failed attempt; one that was refused at once costs nothing."""
        if self._received_any or isinstance(error, Stalled):
            self._end_attempt(self._estimated_usage(), self._reported_usage or Usage())
        self._running = False

    def _end_attempt(self, claim: Usage, reported: Usage) -> None:
        """End the attempt with a claimed usage; ``reported`` is the usage that the provider reported."""
        self._last_usage, bound = self._charged_usage(claim)
        self._running = False
        if bound is not None and reported.total:
            self.bound = f"claimed {reported.total} tokens, charged {self._last_usage.total} (at {bound})"

    def _estimated_usage(self) -> Usage:
        output, counted = estimate_tokens(self._characters), self._reported_usage
        if counted is None:
            return Usage(self.input, output, estimate_tokens(self._unseen))
        return Usage(counted.input or self.input, max(counted.output, output), counted.thinking)

    def _charged_usage(self, claim: Usage) -> tuple[Usage, Bound | None]:
        """Limit a claim to what is charged for it; and which bound was used."""
        return limit_claim(claim, self.sent, self._received_bytes, self.question.max_tokens)


@contextlib.asynccontextmanager
async def immediate_turn() -> AsyncIterator[None]:
    """The default ``turn``: doesn't wait."""
    yield


@define(eq=False)
class ProviderClient:
    """The connection to the provider, shared by all requests; opened for the first of them.

    ``name`` is the provider's name. ``on_model_changed`` is called with a model's name when its availability may have
    changed. :meth:`serve` publishes the ends of pauses.
    """

    connect: Connect
    retry: Retry
    timeouts: Timeouts
    random: Random = field(factory=Random)
    name: str = "none"
    on_model_changed: Callable[[str], None] | None = None
    publish: Publish = discard
    models: ModelAvailabilities = field(init=False)
    _logged: tuple[type, float] = (type(None), -math.inf)
    _provider: Provider | None = None
    _connecting: trio.Lock = field(factory=trio.Lock)
    _pauses: dict[str, float] = field(factory=dict)  # published: until when, by model; -inf: until a probe succeeds
    _paused: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.models = ModelAvailabilities(self.retry)

    async def send(
        self,
        request: ActiveRequest,
        turn: Callable[[], AbstractAsyncContextManager[None]] = immediate_turn,
        step_aside: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> Answer:
        """Return the answer. ``asked`` records the usage, also after a failure. Raises the ``CallError`` to reply.

        Each attempt is made within a ``turn``. Between two attempts ``step_aside`` is awaited with the seconds that
        this request has to wait; other requests may be sent meanwhile.
        """
        try:
            with trio.fail_after(self.timeouts.total):
                provider = await self._connect_once()
                while True:
                    async with turn():
                        outcome = await self._send_once(provider, request)
                    if isinstance(outcome, Answer):
                        return outcome
                    await step_aside(outcome)
        except trio.TooSlowError:
            raise Timeout(f"the model hasn't answered within {self.timeouts.total:g} s (timeouts.total)") from None
        except ProviderError as error:
            self._log_error(error)
            raise error_for_agent(error, request.attempts) from None

    async def prepare(self) -> None:
        """Open the connection before a request needs it. If that fails, the next request tries again."""
        try:
            await self._connect_once()
        except ProviderError as error:
            self._log_error(error)

    async def serve(self) -> None:
        """Publish the ends of pauses, until cancelled."""
        while True:
            for model in list(self._pauses):
                self._publish_change(model)
            now, self._paused = trio.current_time(), trio.Event()
            with trio.move_on_at(min((until for until in self._pauses.values() if until > now), default=math.inf)):
                await self._paused.wait()

    async def aclose(self) -> None:
        if self._provider is not None:
            await self._provider.aclose()

    def _log_error(self, error: ProviderError) -> None:
        """Log errors of the provider for the operator; the same kind at most once in ``LOG_INTERVAL`` seconds."""
        now = trio.current_time()
        if not isinstance(error, Rejected) and (
            type(error) is not self._logged[0] or now - self._logged[1] >= LOG_INTERVAL
        ):
            self._logged = (type(error), now)
            log.warning("the model's provider: %s", error)

    async def _connect_once(self) -> Provider:
        async with self._connecting:
            if self._provider is None:
                self._provider = await self.connect()
        return self._provider

    async def _send_once(self, provider: Provider, request: ActiveRequest) -> Answer | float:
        """Return the answer, or the seconds until the request may be sent again."""
        model, now = request.question.model, trio.current_time()
        self.check_available(request)
        if (opens := self.available_at(model)) is not None:
            return opens - now if opens < math.inf else PROBE_POLL
        with self.models.tracked(model, now) as availability:
            try:
                return await self._attempt(provider, availability, request)
            except RateLimited as error:
                now = trio.current_time()
                availability.record_slow_down(error, now, self.random)
                self._log_error(error)
                request.retry_deadline = min(request.retry_deadline, now + self.retry.patience)
                if request.partly_delivered:
                    raise
                self.check_available(request)
                return availability.paused_until - now
            except Failing as error:
                request.failures += 1
                if (
                    request.partly_delivered
                    or request.failures == self.retry.attempts
                    or availability.breaker.state is State.OPEN
                ):
                    raise
                return retry_delay(self.retry, request.failures, error.after, self.random)
            finally:
                self._notify(model)

    async def _attempt(self, provider: Provider, availability: ModelAvailability, request: ActiveRequest) -> Answer:
        """Send the request once."""
        with availability.breaker.attempt(trio.current_time(), request.account) as attempt:
            self._notify(availability.model)  # no other request is let through during a probe of the half-open breaker
            request.begin_attempt()
            try:
                with time_failure(request):
                    answer = await self._receive(provider, request)
            except Failing as error:
                availability.record_failure(error)
                request.record_failure(error)
                if request.has_begun:
                    attempt.succeeded()
                else:
                    attempt.failed(trio.current_time())
                raise
            except ProviderError as error:
                request.record_failure(error)
                attempt.succeeded()  # the provider is reachable and refused this request
                raise
            request.record_answer(answer.usage)
            attempt.succeeded()
            availability.record_answer(trio.current_time())
            return evolve(answer, usage=request.last_usage)

    async def _receive(self, provider: Provider, request: ActiveRequest) -> Answer:
        """Wait for the answer; raises :class:`Stalled` if a piece of it is late."""
        times = self.timeouts

        def on_delta(delta: Delta) -> None:
            patience.deadline = trio.current_time() + times.idle
            request.receive(delta)
            if request.is_too_long:
                patience.cancel()

        with trio.move_on_after(times.first_token) as patience:
            return await ask(provider, request.question, on_delta)
        if request.is_too_long:
            raise Rejected(f"its answer is longer than {request.max_characters} characters")
        if request.has_begun:
            raise Stalled(f"it stopped in the middle of its answer for {times.idle:g} s")
        raise Stalled(f"it didn't begin to answer within {times.first_token:g} s")

    def available_at(self, model: str) -> float | None:
        """As :meth:`ModelAvailability.available_at`, for this model and on Trio's clock."""
        availability = self.models.get(model)
        return None if availability is None else availability.available_at(trio.current_time())

    def check_available(self, request: ActiveRequest) -> None:
        """Raise ``Unavailable`` if a request can't wait until its model accepts requests.

        This is so while the circuit breaker is open, and in a pause that ends after the request's deadline or lasts
        longer than ``retry.patience``.
        """
        now, availability = trio.current_time(), self.models.get(request.question.model)
        if availability is None:
            return
        if availability.is_down(now):
            times = f"{self.retry.breaker} times in a row, the last time: {availability.reason}"
            wait = (availability.available_at(now) or now) - now
            raise Unavailable(f"the model's provider has failed {times}: try again in {math.ceil(wait)} s")
        limit = min(request.deadline, request.retry_deadline, now + self.retry.patience)
        if availability.paused_until > max(now, limit):
            until = time.time() + availability.paused_until - now
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(math.ceil(until)))
            why = "the call's deadline" if limit == request.deadline else f"retry.patience ({self.retry.patience:g} s)"
            tried = f" (asked {request.attempts} times)" if request.attempts > 1 else ""
            raise Unavailable(
                f"the model's provider accepts no requests for {availability.model} until {when}, "
                f"which is after {why}: {availability.reason}{tried}",
                until=until,
                upstream_status=429,
            )

    def unavailable_models(self) -> list[ModelState]:
        """States of the models that are paused or down."""
        return [state for state in self.models.states(trio.current_time()) if state.state != "ok"]

    def _notify(self, model: str) -> None:
        self._publish_change(model)
        if self.on_model_changed is not None:
            self.on_model_changed(model)

    def _publish_change(self, model: str) -> None:
        """Publish a model's pause if it is new or was extended, and its end."""
        now, availability = trio.current_time(), self.models.get(model)
        state = ModelState(model) if availability is None else availability.state(now)
        published = self._pauses.get(model)
        if state.state == "ok" and published is not None:
            del self._pauses[model]
            self.publish(ModelAvailable(self.name, model))
        elif state.state != "ok" and state.until is None:
            self._pauses[model] = -math.inf
        elif state.until is not None and (published is None or state.until > published + 0.001):  # it is rounded
            self._pauses[model] = state.until
            self._paused.set()
            self.publish(ModelPaused(self.name, model, state.reason or "", time.time() + state.until - now))


@contextlib.contextmanager
def time_failure(request: ActiveRequest) -> Iterator[None]:
    """Add the duration of a failed attempt to ``held``."""
    began = trio.current_time()
    try:
        yield
    except BaseException:
        request.failed_seconds += trio.current_time() - began
        raise


def error_for_agent(error: ProviderError, attempts: int) -> CallError:
    """The ``CallError`` that the agent receives for a provider's error."""
    details = {} if error.status is None else {"upstream_status": error.status}
    if isinstance(error, Rejected):
        return BadRequest(f"the model's provider rejects this: {error}", **details)
    tried = f" (asked {attempts} times)" if attempts > 1 else ""
    return Unavailable(f"the model's provider: {error}{tried}", **details)
