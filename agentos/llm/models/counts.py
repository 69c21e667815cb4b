"""Counts of what each caller has used of each model since the kernel started."""

import re
from collections.abc import Mapping

from attrs import define, field
from msgspec import Struct

from agentos_sdk.values import Usage

MAX_NAMES = 2000  # callers that are counted; then the one that asked longest ago is dropped
MAX_MODELS = 20  # of one caller; further ones are counted together
OTHER = "other"
ONE_OF_MANY = re.compile(r"[ #].*")  # in ``operator#7`` and ``guest ada``; no agent's name has these characters


class ModelUse(Struct):
    """Tokens as in :class:`agentos_sdk.values.Usage`. ``cost`` is in billionths, 0 for a model without a price.

    ``seconds`` is how long the provider worked on calls, ``waiting_seconds`` how long they waited for it.
    """

    calls: int = 0
    input: int = 0
    output: int = 0
    thinking: int = 0
    cost: int = 0
    seconds: float = 0.0
    waiting_seconds: float = 0.0
    cache_read: int = 0
    cache_creation: int = 0


@define(eq=False)
class ModelCounts:
    """By name and model. All connections of the operator are counted as ``operator``, all guests as ``guest``."""

    _by_name: dict[str, dict[str, ModelUse]] = field(factory=dict)  # the one that asked last is the last

    def add_use(self, name: str, model: str, calls: int, usage: Usage, cost: int | None) -> None:
        """Add what one attempt has used."""
        use = self._find(name, model)
        use.calls += calls
        use.input += usage.input
        use.output += usage.output
        use.thinking += usage.thinking
        use.cache_read += usage.cache_read
        use.cache_creation += usage.cache_creation
        use.cost += cost or 0

    def add_time(self, name: str, model: str, seconds: float, waiting: float) -> None:
        """Add the times of a call that has ended, with or without an answer."""
        use = self._find(name, model)
        use.seconds += seconds
        use.waiting_seconds += waiting

    def of(self, name: str) -> Mapping[str, ModelUse]:
        """What a caller has used, by model."""
        return self._by_name.get(name, {})

    def _find(self, name: str, model: str) -> ModelUse:
        name = ONE_OF_MANY.sub("", name)
        models = self._by_name[name] = self._by_name.pop(name, {})
        if len(self._by_name) > MAX_NAMES:
            del self._by_name[next(iter(self._by_name))]
        if model not in models and len(models) >= MAX_MODELS:
            model = OTHER
        return models.setdefault(model, ModelUse())
