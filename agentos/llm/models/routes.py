"""Routes of questions: which models a name stands for, which provider each has, and which one is asked.

A name is, in this order: an alias, a model that a provider lists by its name, an alias that is a pattern, a model that
matches a pattern of a provider. Of several patterns, as of several providers, the first one in the file counts.

A question that names an alias is sent to its first model that accepts it within ``fallback_after`` seconds and isn't
out after repeated failures. It goes to the next one if that one gives no answer, or costs more than the caller's
budgets have left when it is admitted, as long as no part of an answer has been delivered. A question that names a model
is sent to no other.
"""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

import trio
from attrs import define
from msgspec import Struct

from agentos.llm.ask import CannotAnswer, ProviderClient
from agentos.llm.queue.request import Request
from agentos.llm.settings import LLMSettings, ProviderSettings
from agentos_sdk.errors import NotFound, QuotaExceeded
from agentos_sdk.values import Fallback

from .model import ModelUnavailable

LONG_SPELLING = "models/"
NextModel: TypeAlias = ModelUnavailable | CannotAnswer | QuotaExceeded
"""An error of one model after which a question to an alias is sent to the next one."""


class Route(Struct, frozen=True):
    """The models that a question may be sent to, in order, and those that the caller may not use."""

    name: str
    models: Sequence[str]
    passed: Sequence[Fallback] = ()


def plain_model_name(name: str) -> str:
    """A model's name as rules, prices and limits have it: Gemini takes it with any number of ``models/`` before it."""
    while name.startswith(LONG_SPELLING):
        name = name.removeprefix(LONG_SPELLING)
    return name


def is_pattern(name: str) -> bool:
    """Whether a name in the configuration stands for several: ``*`` is any characters, ``?`` one."""
    return "*" in name or "?" in name


def find_provider(providers: Mapping[str, ProviderSettings], model: str) -> str | None:
    """The name of the provider of a model: one that lists it by its name goes before one with a matching pattern."""
    listed = (name for name, each in providers.items() if model in each.models)
    matching = (name for name, each in providers.items() if any(fnmatchcase(model, one) for one in each.models))
    return next(listed, None) or next(matching, None)


@define(eq=False)
class Routes:
    """``clients`` are the providers by name, of which the first has every model if the settings name none.

    ``model`` is the default one, empty if there is none.
    """

    settings: LLMSettings
    clients: Mapping[str, ProviderClient]
    model: str

    def resolve(self, name: str) -> Route:
        """The models that a name stands for; a name that is no alias stands for itself."""
        aliases = self.settings.aliases
        if name in aliases:
            return Route(name, aliases[name])
        if not any(name in provider.models for provider in self.settings.providers.values()):
            pattern = next((alias for alias in aliases if is_pattern(alias) and fnmatchcase(name, alias)), None)
            if pattern is not None:
                return Route(name, aliases[pattern])
        return Route(name, (name,))

    def knows(self, name: str) -> bool:
        """Whether a question may have this name as its model."""
        models = self.resolve(plain_model_name(name)).models
        return bool(self.model) and all(self._find(model) is not None for model in models)

    def offers(self, name: str) -> bool:
        """Whether the configuration has this name: as it is, or by a pattern.

        A provider's pattern ``*`` doesn't count: whether it has a model is known to the provider alone.
        """
        name = plain_model_name(name)
        providers = self.settings.providers.values()
        patterns = {*self.settings.aliases, *(model for each in providers for model in each.models if model != "*")}
        return self.knows(name) and (name in self.names() or any(fnmatchcase(name, one) for one in patterns))

    def names(self) -> Sequence[str]:
        """The names that questions may have as their model and that are no patterns: the default one first."""
        aliases = [alias for alias in self.settings.aliases if not is_pattern(alias)]
        return list(dict.fromkeys([*([self.model] if self.model else []), *aliases, *self.models()]))

    def models(self) -> Sequence[str]:
        """The models that the configuration names: those of the default name first."""
        default = self.resolve(self.model).models if self.model else ()
        listed = (model for each in self.settings.providers.values() for model in each.models if not is_pattern(model))
        targets = (model for models in self.settings.aliases.values() for model in models)
        return list(dict.fromkeys([*default, *targets, *listed]))

    def client_of(self, model: str) -> ProviderClient:
        """The provider of a model; raises ``NotFound``."""
        client = self._find(model)
        if client is None:
            raise NotFound(f"model: no provider has {model[:200]!r}: the names are {', '.join(self.names())[:500]}")
        return client

    def begin(self, request: Request) -> None:
        """Give a request its first model; raises ``ModelUnavailable`` if it can't wait for any."""
        self.choose(request)
        try:
            self.client_of(request.model).models.check(request)
        except ModelUnavailable as error:
            self.fall_back(request, error)

    def choose(self, request: Request, avoid: Mapping[str, str] = {}) -> None:
        """Give a request the first model that accepts it soon; if none does, the one that is available first.

        ``avoid`` are reasons against models, by model.
        """
        left = request.candidates
        reasons = {model: avoid.get(model) or self._reason_against(model, request) for model in left}
        accepting = [model for model in left if reasons[model] is None]
        model = accepting[0] if accepting else min(left, key=self._opens_at)
        for earlier in left[: left.index(model)]:
            request.passed[earlier] = reasons[earlier] or ""
        request.passed.pop(model, None)
        request.change_model(model, self.settings.fallback_after if len(accepting) > 1 else None)

    def fall_back(self, request: Request, error: NextModel) -> None:
        """Give a request another model after an error of its model; raises an error if there is none."""
        while True:
            self._pass_over(request, error)
            self.choose(request)
            try:
                self.client_of(request.model).models.check(request)
            except ModelUnavailable as unavailable:
                error = unavailable
            else:
                return

    def _pass_over(self, request: Request, error: NextModel) -> None:
        """Note why a request's model doesn't answer it; raises an error if there is no other."""
        if isinstance(error, ModelUnavailable):
            request.unavailable = request.unavailable or error
        if request.alias is None or request.partly_delivered:
            raise error
        request.passed[request.model] = str(error)
        was_tried = not isinstance(error, ModelUnavailable) or error.attempted or request.fallback_after is None
        if was_tried and request.model in request.candidates:
            request.candidates.remove(request.model)
        if not request.candidates:
            if isinstance(error, QuotaExceeded):
                raise error
            reasons = "; ".join(f"{one}: {reason}" for one, reason in request.passed.items())
            first = request.unavailable or error
            details = {**first.details}
            details.pop("retry", None)  # that is about one model
            raise type(first)(f"no model of {request.alias} answers: {reasons}", **details)

    def _reason_against(self, model: str, request: Request) -> str | None:
        """Why a request shouldn't wait for a model."""
        now, models = trio.current_time(), self.client_of(model).models
        state = models.state(model)
        opens = state.opens_at
        if opens == math.inf or (opens is not None and state.state == "down"):
            return f"its provider has failed too often, the last time: {state.reason}"
        if opens is not None and opens > min(now + self.settings.fallback_after, request.deadline):
            why = "as [llm.limits] says" if state.state == "limited" else state.reason
            return f"it accepts no requests for {math.ceil(opens - now)} s: {why}"
        if models.outages.is_out(model, request.account, now):
            return "it has failed repeatedly and isn't asked for a while"
        return None

    def _opens_at(self, model: str) -> float:
        opens = self.client_of(model).models.state(model).opens_at
        return -math.inf if opens is None else opens

    def _find(self, model: str) -> ProviderClient | None:
        if not self.settings.providers:
            return next(iter(self.clients.values()))
        name = find_provider(self.settings.providers, model)
        return None if name is None else self.clients[name]
