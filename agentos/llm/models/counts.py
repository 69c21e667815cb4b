"""Counts of what each caller has used of each model since the kernel started, and in the last hour."""

import re
import time
from collections.abc import Callable, Mapping

from attrs import define, field
from msgspec import Struct

from agentos_sdk.values import Usage

MAX_NAMES = 2000  # callers that are counted; then the one that asked longest ago is dropped
MAX_MODELS = 20  # of one caller; further ones are counted together
STEP = 300.0  # seconds of one count of the last hour
STEPS = 12
OTHER = "other"
ONE_OF_MANY = re.compile(r"[ #].*")  # in ``operator#7`` and ``guest ada``; no agent's name has these characters


class ModelUse(Struct):
    """Tokens as in :class:`agentos_sdk.values.Usage`. ``cost`` is in billionths, 0 for a model without a price.

    ``seconds`` is how long the provider worked on calls, ``waiting_seconds`` how long they waited for it. Of the
    ``questions`` that have ended ``failed`` had no answer, and ``retried`` were sent more than once.
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
    questions: int = 0
    failed: int = 0
    retried: int = 0

    def add(self, other: "ModelUse") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@define(eq=False)
class ModelCounts:
    """By name and model. All connections of the operator are counted as ``operator``, all guests as ``guest``.

    In the last hour each guest has a name of its own, as in USAGE.
    """

    clock: Callable[[], float] = time.monotonic
    _by_name: dict[str, dict[str, ModelUse]] = field(factory=dict)  # the one that asked last is the last
    _steps: dict[int, dict[tuple[str, str], ModelUse]] = field(factory=dict)  # by time in steps, then name and model

    def add_use(self, name: str, model: str, calls: int, usage: Usage, cost: int | None) -> None:
        """Add what one attempt has used."""
        for use in self._find(name, model):
            use.calls += calls
            use.input += usage.input
            use.output += usage.output
            use.thinking += usage.thinking
            use.cache_read += usage.cache_read
            use.cache_creation += usage.cache_creation
            use.cost += cost or 0

    def add_end(self, name: str, model: str, times: tuple[float, float], *, failed: bool, retried: bool) -> None:
        """Add a question that has ended, and how long the provider worked on it and it waited."""
        for use in self._find(name, model):
            use.seconds += times[0]
            use.waiting_seconds += times[1]
            use.questions += 1
            use.failed += failed
            use.retried += retried

    def of(self, name: str) -> Mapping[str, ModelUse]:
        """What a caller has used, by model."""
        return self._by_name.get(name, {})

    def last_hour(self) -> Mapping[tuple[str, str], ModelUse]:
        """What was used in the last hour, by name and model; up to a step of it is forgotten already."""
        found: dict[tuple[str, str], ModelUse] = {}
        for step, uses in self._steps.items():
            if step > self.clock() // STEP - STEPS:
                for key, use in uses.items():
                    found.setdefault(key, ModelUse()).add(use)
        return found

    def _find(self, name: str, model: str) -> tuple[ModelUse, ModelUse]:
        """The counts since the kernel started, and those of this step."""
        step, key = int(self.clock() // STEP), (name.partition("#")[0], model)
        if step not in self._steps:
            self._steps = {at: uses for at, uses in self._steps.items() if at > step - STEPS} | {step: {}}
        uses = self._steps[step]
        if key not in uses and len(uses) >= MAX_NAMES:
            key = (OTHER, OTHER)
        name = ONE_OF_MANY.sub("", name)
        models = self._by_name[name] = self._by_name.pop(name, {})
        if len(self._by_name) > MAX_NAMES:
            del self._by_name[next(iter(self._by_name))]
        if model not in models and len(models) >= MAX_MODELS:
            model = OTHER
        return models.setdefault(model, ModelUse()), uses.setdefault(key, ModelUse())
