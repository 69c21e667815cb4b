"""Requests sent to one provider until they are answered: deadlines and retries."""

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random

import trio
from attrs import define, evolve, field

from agentos.services.events import Publish, discard
from agentos_sdk.errors import BadRequest, CallError, Timeout

from .answers.sampling import unsupported_parameter
from .models.circuit_breaker import PROBE_POLL, State
from .models.model import KeyState, Model, ModelUnavailable
from .models.provider_models import ProviderModels
from .providers.provider import (
    Answer,
    Delta,
    Denied,
    Embedder,
    Failing,
    MalformedCall,
    NoJSON,
    Provider,
    ProviderError,
    Question,
    RateLimited,
    Rejected,
    Unforeseen,
    ask,
)
from .queue.attempt import Attempt, Stalled
from .queue.request import Request
from .retry import retry_delay
from .settings import ModelLimits, ProviderName, Retry, Timeouts

log = logging.getLogger(__name__)

LOG_INTERVAL = 60.0  # seconds between two log messages about the same error
MIN_UPLOAD_RATE = 1 << 20  # bytes per second at which a slow connection may send a question to an alias
MALFORMED_ATTEMPTS = 2  # at most: a caller that tells the model what was wrong gets a correct call sooner
DENIED_SECONDS = 60.0  # seconds for which a refused key isn't used, if there are others
NO_LIMITS = ModelLimits()
Connect = Callable[[], Awaitable[Provider]]


class CannotAnswer(BadRequest):
    """The model can't do what is asked; another model may."""


@define(eq=False)
class ProviderClient:
    """The connections to a provider, one for each API key, shared by all requests; opened for the first of them.

    ``connect`` opens the one with the first key, ``further_keys`` the others; they are used in turn. ``name`` is the
    provider's, ``kind`` its type. ``limits`` are by model. At most ``concurrency`` requests are in flight, which the
    line ensures; ``None``: as many as its settings say. ``models`` tells which of them accept requests.
    """

    connect: Connect
    retry: Retry
    timeouts: Timeouts
    random: Random = field(factory=Random)
    name: str = "none"
    publish: Publish = discard
    kind: ProviderName | None = None
    further_keys: Sequence[Connect] = ()
    limits: Mapping[str, ModelLimits] = field(factory=dict)
    concurrency: int | None = None
    models: ProviderModels = field(init=False)
    _logged: tuple[type, float] = (type(None), -math.inf)
    _providers: Sequence[Provider] = ()  # one for each key
    _connecting: trio.Lock = field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self.models = ProviderModels(
            self.name, self.retry, self.limits, 1 + len(self.further_keys), publish=self.publish
        )

    async def send(
        self,
        request: Request,
        reserve: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
        defer: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> Answer:
        """Return the answer. ``request`` records the usage, also after a failure. Raises the ``CallError`` to reply.

        Each attempt is made within ``reserve``. Between two attempts ``defer`` is awaited with the seconds that this
        request has to wait; other requests may be sent meanwhile.
        """
        model = request.model
        request.expires = min(request.expires, trio.current_time() + self.timeouts.total)
        try:
            with trio.fail_at(request.expires):
                await self._connect_once()
                while True:
                    async with reserve():
                        outcome = await self._send_once(request)
                    if isinstance(outcome, Answer):
                        return outcome
                    await defer(outcome)
        except trio.TooSlowError:
            raise Timeout(f"the model hasn't answered within {self.timeouts.total:g} s (timeouts.total)") from None
        except ProviderError as error:
            self._log_error(error)
            raise error_for_agent(error, request) from None
        finally:
            self.models.leave(model, request)

    async def prepare(self) -> None:
        """Open the connections before a request needs them. If that fails, the next request tries again."""
        try:
            await self._connect_once()
        except ProviderError as error:
            self._log_error(error)

    async def aclose(self) -> None:
        for provider in self._providers:
            await provider.aclose()

    def check_supported(self, question: Question) -> None:
        """Raise ``CannotAnswer`` if the model can't answer such a question, as far as that is known."""
        limits = self.limits.get(question.model)
        asked = {
            "images": any(message.images for message in question.messages),
            "tools": bool(question.tools),
            "schema": question.response_schema is not None,
        }
        lacking = [what for what in limits.lacks if asked[what]] if limits is not None else []
        if lacking:
            raise CannotAnswer(f"model: {question.model} takes no {lacking[0]}, as [llm.limits] says")
        if (name := unsupported_parameter(question.sampling, self.kind or self.name)) is not None:
            raise CannotAnswer(f"{name}: the provider of {question.model} ({self.kind}) can't do this: leave it out")
        if self._providers and question.embed and not isinstance(self._providers[0], Embedder):
            raise CannotAnswer(f"model: the provider of {question.model} has no embeddings")
        if self._providers and (reason := self._providers[0].supports(question)) is not None:
            raise CannotAnswer(f"model: {question.model} {reason}")

    def keeps_room_for(self, request: Request) -> bool:
        """Whether other requests for its model wait until this one is sent; see :meth:`RateLimit.check`."""
        model = self.models.kept.get(request.model)
        return model is not None and model.rate is not None and model.rate.keeps_room_for(request)

    def _log_error(self, error: ProviderError) -> None:
        """Log errors of the provider for the operator; the same kind at most once in ``LOG_INTERVAL`` seconds."""
        now = trio.current_time()
        if not isinstance(error, Rejected) and (
            type(error) is not self._logged[0] or now - self._logged[1] >= LOG_INTERVAL
        ):
            self._logged = (type(error), now)
            log.warning("the model's provider: %s", error)

    async def _connect_once(self) -> None:
        async with self._connecting:
            if not self._providers:
                self._providers = [await connect() for connect in (self.connect, *self.further_keys)]

    async def _send_once(self, request: Request) -> Answer | float:
        """Return the answer, or the seconds until the request may be sent again."""
        self.check_supported(request.outgoing)
        with self.models.tracked(request.model) as model:
            opens = self._find_opening(model, request)
            if opens is not None:
                return seconds_until(opens)
            number = self.models.choose_key(model)
            key = model.keys[number]
            try:
                return await self._attempt(self._providers[number], model, key, request)
            except RateLimited as error:
                now = trio.current_time()
                key.record_slow_down(error, now, self.random)
                self._log_error(error)
                request.retry_deadline = min(request.retry_deadline, now + model.patience(request))
                if request.partly_delivered:
                    raise
                opens = model.check(request, now)
                return 0.0 if opens is None else seconds_until(opens)
            except Denied as error:
                if len(self._providers) == 1 or request.partly_delivered:
                    raise
                now = trio.current_time()
                key.pause(error, now + DENIED_SECONDS)
                self._log_error(error)
                if model.state(now).opens_at is not None:
                    raise
                return 0.0
            except Failing as error:
                request.failures += 1
                if (
                    request.partly_delivered
                    or request.fallback_after is not None
                    or request.failures == self.retry.attempts
                    or key.breaker.state is State.OPEN
                    or isinstance(error, Unforeseen)
                    or (isinstance(error, MalformedCall | NoJSON) and request.failures >= MALFORMED_ATTEMPTS)
                ):
                    raise
                return retry_delay(self.retry, request.failures, error.after, self.random)
            finally:
                self.models.notify(model.name)

    def _find_opening(self, model: Model, request: Request) -> float | None:
        """When a model accepts a request, ``None``: now; raises ``ModelUnavailable`` if the request can't wait."""
        now = trio.current_time()
        opens = model.check(request, now)
        if request.fallback_after is not None and self.models.outages.is_out(model.name, request.account, now):
            raise ModelUnavailable(f"{model.name} has failed repeatedly and is probed by another question")
        if opens is None and model.rate is not None:
            opens = model.rate.check(request.input, request.outgoing.max_tokens, now, request, request.account)
            if opens is not None:
                model.check(request, now)
                self.models.notify(model.name)
        return opens

    async def _attempt(self, provider: Provider, model: Model, key: KeyState, request: Request) -> Answer:
        """Send the request once."""
        began, rate = trio.current_time(), model.rate
        sent = rate.begin(request.input, request.outgoing.max_tokens, began) if rate is not None else None
        try:
            with (
                self.models.outages.attempt(model.name, request.account, trio.current_time),
                key.breaker.attempt(began, request.account) as probe,
            ):
                self.models.notify(model.name)  # no other request is let through during a probe of the breaker
                try:
                    with request.attempt_to_send() as attempt:
                        answer = await self._receive(provider, request, attempt)
                        attempt.end(answer.usage)
                except ProviderError as error:
                    if isinstance(error, Failing) and not isinstance(error, Unforeseen):
                        key.reason = str(error)
                        if not attempt.has_begun:
                            probe.failed(trio.current_time())
                            raise
                    probe.succeeded()  # the provider is reachable
                    raise
                probe.succeeded()
                key.record_answer(trio.current_time())
                return evolve(answer, usage=attempt.usage)
        finally:
            if rate is not None and sent is not None:
                used = request.attempt.usage
                rate.end(sent, used.total or sent.tokens, used.generated, trio.current_time())

    async def _receive(self, provider: Provider, request: Request, attempt: Attempt) -> Answer:
        """Wait for the answer; raises :class:`Stalled` if a piece of it is late.

        If another model can be asked, the provider has to accept the request within ``fallback_after`` and a second for
        each MiB of it, which has to be sent first.
        """
        began = trio.current_time()
        limits = self.limits.get(request.model, NO_LIMITS)
        first_token = self.timeouts.first_token if limits.first_token is None else limits.first_token
        idle = self.timeouts.idle if limits.idle is None else limits.idle
        accepted = first_token
        if request.fallback_after is not None:
            accepted = min(first_token, request.fallback_after + request.question.size / MIN_UPLOAD_RATE)

        def on_delta(delta: Delta) -> None:
            if delta.accepted:
                attempt.accepted = True
                patience.deadline = began + first_token
                return
            request.receive(attempt, delta)
            patience.deadline = began + first_token if attempt.first_at is None else trio.current_time() + idle
            if attempt.excess is not None:
                patience.cancel()

        with trio.move_on_after(accepted) as patience:
            return await ask(provider, request.outgoing, on_delta)
        if attempt.excess is not None:
            raise Rejected(f"its answer is longer than {attempt.excess} characters")
        if attempt.first_at is not None:
            raise Stalled(f"it stopped in the middle of its answer for {idle:g} s")
        raise Stalled(f"it didn't begin to answer within {patience.deadline - began:g} s")


def seconds_until(opens: float) -> float:
    """Seconds until a model opens, 0 if it has meanwhile; if that isn't known, until it is looked at again."""
    return max(0.0, opens - trio.current_time()) if opens < math.inf else PROBE_POLL


def error_for_agent(error: ProviderError, request: Request) -> CallError:
    """The ``CallError`` that the agent receives for a provider's error."""
    details: dict[str, object] = {} if error.status is None else {"upstream_status": error.status}
    if isinstance(error, Denied | Unforeseen):
        details["retry"] = False  # until the operator has changed something; the next answer would be the same
    if isinstance(error, MalformedCall | NoJSON):  # a later attempt is no better: the caller may tell the model
        details |= {"retry": False, "tokens": request.total_usage.total}
    if isinstance(error, Rejected):
        kind = CannotAnswer if error.status == 404 else BadRequest  # 404: the provider has no such model, or no longer
        return kind(f"the model's provider rejects this: {error}", **details)
    tried = f" (asked {request.attempts} times)" if request.attempts > 1 else ""
    unavailable = ModelUnavailable(f"the model's provider: {error}{tried}", **details)
    unavailable.attempted = True
    return unavailable
