"""The models of one provider that have a state to keep; publishes when one is paused, and when it is available again.

Agents may name any model, so about 256 are kept at most. If more are needed, the one that opens first is dropped: at
worst it receives one request too early.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import trio
from attrs import define, field

from agentos.llm.queue.rate_limits import RateLimit
from agentos.llm.queue.request import Request
from agentos.llm.settings import ModelLimits, Retry
from agentos.services.events import ModelAvailable, ModelPaused, Publish, discard

from .model import KeyState, Model, ModelState
from .outages import Outages

MAX_MODELS = 256


@define(eq=False)
class ProviderModels:
    """The models of the provider ``name``, which has ``key_count`` API keys; ``limits`` are by model.

    ``on_changed`` is called with a model's name when its state may have changed. :meth:`serve` publishes the ends of
    pauses.
    """

    name: str
    retry: Retry
    limits: Mapping[str, ModelLimits]
    key_count: int
    publish: Publish = discard
    on_changed: Callable[[str], None] = lambda model: None
    outages: Outages = field(factory=Outages)
    kept: dict[str, Model] = field(factory=dict)
    _next_key: int = 0
    _pauses: dict[str, float] = field(factory=dict)  # published: until when, by model; -inf: until a probe succeeds
    _paused: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.kept = {
            model: self._make(model, RateLimit(limit)) for model, limit in self.limits.items() if limit.rpm or limit.tpm
        }

    async def serve(self) -> None:
        """Publish the ends of pauses, until cancelled."""
        while True:
            for model in list(self._pauses):
                self._publish_change(model)
            now, self._paused = trio.current_time(), trio.Event()
            with trio.move_on_at(min((until for until in self._pauses.values() if until > now), default=math.inf)):
                await self._paused.wait()

    def state(self, name: str) -> ModelState:
        model = self.kept.get(name)
        return ModelState(name) if model is None else model.state(trio.current_time())

    def check(self, request: Request) -> None:
        """See :meth:`Model.check`."""
        if (model := self.kept.get(request.model)) is not None:
            model.check(request, trio.current_time())

    @contextmanager
    def tracked(self, name: str) -> Iterator[Model]:
        """A model, which isn't dropped while the block runs."""
        model = self.kept.get(name)
        if model is None:
            if len(self.kept) >= MAX_MODELS + len(self.limits):
                unused = (one for one in self.kept.values() if not one.attempts and one.rate is None)
                opens = partial(_opens_at, trio.current_time())
                if (first := min(unused, key=opens, default=None)) is not None:
                    del self.kept[first.name]
            model = self.kept[name] = self._make(name)
        model.attempts += 1
        try:
            yield model
        finally:
            model.attempts -= 1
            if model.idle:
                del self.kept[name]

    def choose_key(self, model: Model) -> int:
        """The next key in turn with which a model may be asked."""
        now = trio.current_time()
        order = [(self._next_key + step) % self.key_count for step in range(self.key_count)]
        key = next(key for key in order if model.keys[key].state(model.name, now).opens_at is None)
        self._next_key = (key + 1) % self.key_count
        return key

    def leave(self, name: str, request: Request) -> None:
        """Keep no room any more for a request that isn't sent after all."""
        rate = self.kept[name].rate if name in self.kept else None
        if rate is not None and rate.leave(request, trio.current_time(), request.account):
            self.notify(name)

    def unavailable(self) -> list[ModelState]:
        """States of the models that are paused or down with every key; of the keys, the first one that may be used."""
        return [state for state in map(self.state, self.kept) if state.is_unavailable]

    def notify(self, name: str) -> None:
        """Tell that a model's state may have changed."""
        self._publish_change(name)
        self.on_changed(name)

    def _publish_change(self, name: str) -> None:
        """Publish a model's pause if it is new or was extended, and its end."""
        now, state, published = trio.current_time(), self.state(name), self._pauses.get(name)
        if not state.is_unavailable:
            if published is not None:
                del self._pauses[name]
                self.publish(ModelAvailable(self.name, name))
        elif state.until is None:
            self._pauses[name] = -math.inf
        elif published is None or state.until > published + 0.001:  # it is rounded
            self._pauses[name] = state.until
            self._paused.set()
            self.publish(ModelPaused(self.name, name, state.reason or "", time.time() + state.until - now))

    def _make(self, name: str, rate: RateLimit | None = None) -> Model:
        return Model(name, self.retry, [KeyState(self.retry) for _ in range(self.key_count)], rate)


def _opens_at(now: float, model: Model) -> float:
    return model.state(now).opens_at or -math.inf
