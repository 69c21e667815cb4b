"""What one task may use: answers of the model, tokens, money and time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from agentos_sdk.encoding.quantities import EXPECTED_DURATION, seconds

MAX_ITERATIONS = 20


class Budget(NamedTuple):
    """A task ends with the status ``budget`` before a step that would begin beyond one of these.

    ``iterations`` are answers of the model, ``money`` is in the kernel's currency. ``time`` is seconds since the task
    began, with the time in which the agent or the kernel didn't run. None: no limit.
    """

    iterations: int | None = MAX_ITERATIONS
    tokens: int | None = None
    money: float | None = None
    time: float | None = None

    @classmethod
    def of(cls, given: Budget | Mapping[str, object] | None, iterations: int = MAX_ITERATIONS) -> Budget:
        """A budget from a table such as ``{"tokens": 50000, "time": "10m"}``; raises ``ValueError`` with the key."""
        if isinstance(given, Budget):
            return given
        table = {"iterations": iterations, **(given or {})}
        for name, value in table.items():
            if name not in cls._fields:
                raise ValueError(f"budget: expected {', '.join(cls._fields)}, got {name!r}")
            if value is None:
                continue
            if name == "time" and isinstance(value, str):
                value = seconds(value)
                if value is None:
                    raise ValueError(f"budget.time: expected {EXPECTED_DURATION}, got {table[name]!r}")
            whole = name in ("iterations", "tokens")
            kinds = (int,) if whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
                raise ValueError(
                    f"budget.{name}: expected {'a whole ' if whole else 'a '}number above 0, got {value!r}"
                )
            table[name] = value
        return cls(**table)  # type: ignore[arg-type]  # checked above


class Spent:
    """What a task has used, compared with its budget."""

    def __init__(self, budget: Budget, began_at: float) -> None:
        self.budget = budget
        self.steps = 0
        self.tokens = 0
        self.cost: float | None = None
        self._began_at = began_at

    def add(self, thought: Mapping[str, object], times: int = 1) -> None:
        """Count an answer of the model that was asked for ``times`` times: the kernel has charged each of them."""
        tokens, cost = thought.get("tokens"), thought.get("cost")
        self.tokens += times * (tokens if isinstance(tokens, int) else 0)
        if isinstance(cost, int | float):
            self.cost = (self.cost or 0.0) + times * cost

    def left(self, shares: int = 1) -> dict[str, float]:
        """What is left of the budget but for the iterations, as a budget: at least a little of each line.

        ``shares``: by how many who work at the same time tokens and money are divided.
        """
        budget = self.budget
        left: dict[str, float] = {}
        if budget.tokens is not None:
            left["tokens"] = max((budget.tokens - self.tokens) // shares, 1)
        if budget.money is not None:
            left["money"] = max((budget.money - (self.cost or 0.0)) / shares, 1e-9)
        if budget.time is not None:
            left["time"] = max(budget.time - (time.time() - self._began_at), 0.001)
        return left

    def exceeded(self) -> str | None:
        """Which line of the budget is used up, for people."""
        budget = self.budget
        if budget.iterations is not None and self.steps >= budget.iterations:
            return f"the model has answered {self.steps} times, and budget.iterations is {budget.iterations}"
        if budget.tokens is not None and self.tokens >= budget.tokens:
            return f"{self.tokens} tokens are used, and budget.tokens is {budget.tokens}"
        if budget.money is not None and self.tokens and self.cost is None:
            return "budget.money: the model has no price, so that its cost is unknown: add it to [llm.prices]"
        if budget.money is not None and (self.cost or 0.0) >= budget.money:
            return f"{self.cost:g} is spent, and budget.money is {budget.money:g}"
        if budget.time is not None and time.time() - self._began_at >= budget.time:
            return f"{budget.time:g} s have passed, which is budget.time"
        return None
