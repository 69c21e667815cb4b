"""Which models of a provider accept requests: by pauses and failures with each API key, and by limits per minute."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import trio
from attrs import define, field

from agentos.llm.queue.rate_limits import RateLimit
from agentos.llm.queue.request import Request
from agentos.llm.settings import ModelLimits, Retry
from agentos.services.events import ModelAvailable, ModelPaused, Publish, discard
from agentos_sdk.errors import Unavailable

from .availability import ModelAvailabilities, ModelState
from .circuit_breaker import PROBE_POLL


class ModelUnavailable(Unavailable):
    """The model gives no answer, or none soon; another model may. ``attempted``: the request was sent to it."""

    attempted = False


@define(eq=False)
class ProviderModels:
    """The models of the provider ``name``, which has ``key_count`` API keys; ``limits`` are by model.

    ``on_changed`` is called with a model's name when its availability may have changed. :meth:`serve` publishes the
    ends of pauses.
    """

    name: str
    retry: Retry
    limits: Mapping[str, ModelLimits]
    key_count: int
    publish: Publish = discard
    on_changed: Callable[[str], None] = lambda model: None
    keys: Sequence[ModelAvailabilities] = field(init=False)  # which models may be asked with each key
    rates: Mapping[str, RateLimit] = field(init=False)
    _next_key: int = 0
    _pauses: dict[str, float] = field(factory=dict)  # published: until when, by model; -inf: until a probe succeeds
    _paused: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.keys = [ModelAvailabilities(self.retry) for _ in range(self.key_count)]
        self.rates = {model: RateLimit(limit) for model, limit in self.limits.items() if limit.rpm or limit.tpm}

    async def serve(self) -> None:
        """Publish the ends of pauses, until cancelled."""
        while True:
            for model in list(self._pauses):
                self._publish_change(model)
            now, self._paused = trio.current_time(), trio.Event()
            with trio.move_on_at(min((until for until in self._pauses.values() if until > now), default=math.inf)):
                await self._paused.wait()

    def available_at(self, model: str) -> float | None:
        """When a request for this model may be sent, on Trio's clock; ``None``: now. Infinity: that isn't known."""
        now = trio.current_time()
        times = [key.available_at(model, now) for key in self.keys]
        opens = -math.inf if None in times else min(time for time in times if time is not None)
        rate = self.rates.get(model)
        opens = max(opens, rate.opens_at if rate is not None else -math.inf)
        return opens if opens > now else None

    def seconds_until_available(self, model: str) -> float:
        opens, now = self.available_at(model), trio.current_time()
        return 0.0 if opens is None else opens - now if opens < math.inf else PROBE_POLL

    def choose_key(self, model: str, now: float) -> int:
        """The next key in turn with which the model may be asked."""
        count = len(self.keys)
        order = [(self._next_key + step) % count for step in range(count)]
        key = next(key for key in order if self.keys[key].available_at(model, now) is None)
        self._next_key = (key + 1) % count
        return key

    def patience(self, request: Request) -> float:
        """Seconds for which a request waits for a paused model."""
        return self.retry.patience if request.fallback_after is None else request.fallback_after

    def check_available(self, request: Request) -> None:
        """Raise ``ModelUnavailable`` if a request can't wait until its model accepts requests.

        This is so while the circuit breaker is open, and in a pause that ends after the request's deadline or lasts
        longer than ``retry.patience``, or ``fallback_after`` if there is another model.
        """
        now, model = trio.current_time(), request.model
        opens = self.available_at(model)
        if opens is None:
            return
        closed = [one for key in self.keys if (one := key.get(model)) is not None and one.available_at(now) is not None]
        first = None
        if len(closed) == len(self.keys):
            waiting = [one for one in closed if not one.is_down(now)]
            if not waiting:
                times = f"{self.retry.breaker} times in a row, the last time: {closed[0].reason}"
                raise ModelUnavailable(
                    f"the model's provider has failed {times}: try again in {math.ceil(opens - now)} s"
                )
            first = min(waiting, key=lambda availability: availability.paused_until)
        limit = min(request.deadline, request.retry_deadline, now + self.patience(request))
        if opens == math.inf or opens <= max(now, limit):
            return
        until = time.time() + opens - now
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(math.ceil(until)))
        setting = "retry.patience" if request.fallback_after is None else "fallback_after"
        why = "the call's deadline" if limit == request.deadline else f"{setting} ({self.patience(request):g} s)"
        tried = f" (asked {request.attempts} times)" if request.attempts > 1 else ""
        if first is None:
            raise ModelUnavailable(
                f"{model} has had as many requests or tokens as [llm.limits] allows a minute until {when}, "
                f"which is after {why}{tried}",
                until=until,
            )
        raise ModelUnavailable(
            f"the model's provider accepts no requests for {model} until {when}, "
            f"which is after {why}: {first.reason}{tried}",
            until=until,
            upstream_status=429,
        )

    def unavailable(self) -> list[ModelState]:
        """States of the models that are paused or down with every key; of the keys, the first one that may be used."""
        models = dict.fromkeys(state.model for key in self.keys for state in key.states(trio.current_time()))
        return [state for state in map(self.state, models) if state.state != "ok"]

    def state(self, model: str) -> ModelState:
        now = trio.current_time()
        states = [ModelState(model) if (one := key.get(model)) is None else one.state(now) for key in self.keys]
        return min(states, key=lambda state: (state.state != "ok", math.inf if state.until is None else state.until))

    def notify(self, model: str) -> None:
        """Tell that a model's availability may have changed."""
        self._publish_change(model)
        self.on_changed(model)

    def _publish_change(self, model: str) -> None:
        """Publish a model's pause if it is new or was extended, and its end."""
        now, state, published = trio.current_time(), self.state(model), self._pauses.get(model)
        if state.state == "ok" and published is not None:
            del self._pauses[model]
            self.publish(ModelAvailable(self.name, model))
        elif state.state != "ok" and state.until is None:
            self._pauses[model] = -math.inf
        elif state.until is not None and (published is None or state.until > published + 0.001):  # it is rounded
            self._pauses[model] = state.until
            self._paused.set()
            self.publish(ModelPaused(self.name, model, state.reason or "", time.time() + state.until - now))
