"""What comes of a load: waits, failures, waste and fairness, from what the agents saw and what the provider served.

A request has waited from when its agent asked until the provider began with the answer that the agent got: wherever it
waited, with the provider, in a line of ours, or between two attempts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from agentos.llm.queue.fair_queue import jain_index, weighted_cost

from .simulation.loads import Agent, Kind, Request
from .simulation.simulator import Served


@frozen
class Outcome:
    """Of one request, as its agent saw it: seconds on the machine's clock, and the name of the error, if any."""

    request: Request
    asked_at: float
    answered_at: float
    failure: str | None = None


@frozen
class Log:
    """What the provider tells: the attempts that got a slot, and by status how many were refused."""

    served: Sequence[Served]
    refused: Mapping[str, int]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "Log":
        return cls([Served(**each) for each in data["served"]], data["refused"])


@frozen
class Waits:
    """Seconds; NaN without an answer."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, waits: Iterable[float]) -> "Waits":
        got = sorted(waits)
        return cls(*(percentile(got, part) for part in (0.5, 0.95, 0.99)))


def percentile(ordered: Sequence[float], part: float) -> float:
    """The least value that ``part`` of them do not exceed; NaN of none."""
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)] if ordered else math.nan


@frozen
class OfKind:
    """What agents of one kind got."""

    asked: int
    failed: int
    waits: Waits


@frozen
class Figures:
    """``wasted``: tokens, read or generated, of attempts without a delivered answer; ``tokens``: all of them.

    ``makespan``: seconds from the first question to the last answer.
    """

    kinds: Mapping[Kind, OfKind]
    makespan: float
    tokens: int
    wasted: int
    failures: Mapping[str, int] = field(factory=dict)
    refused: Mapping[str, int] = field(factory=dict)

    @property
    def asked(self) -> int:
        return sum(kind.asked for kind in self.kinds.values())

    @property
    def failed(self) -> int:
        return sum(kind.failed for kind in self.kinds.values())


def figures(outcomes: Sequence[Outcome], log: Log) -> Figures:
    answered = {each.id: each for each in log.served if each.fate == "answered"}
    useful = {o.request.asked.id for o in outcomes if o.failure is None}
    wasted = sum(
        each.input + each.output for each in log.served if each.id not in useful or answered.get(each.id) is not each
    )
    kinds: dict[Kind, list[Outcome]] = {}
    for outcome in outcomes:
        kinds.setdefault(outcome.request.kind, []).append(outcome)
    return Figures(
        kinds={kind: _of_kind(each, answered) for kind, each in kinds.items()},
        makespan=max(o.answered_at for o in outcomes) - min(o.asked_at for o in outcomes),
        tokens=sum(each.input + each.output for each in log.served),
        wasted=wasted,
        failures=Counter(o.failure for o in outcomes if o.failure is not None),
        refused=log.refused,
    )


def _of_kind(outcomes: Sequence[Outcome], answered: Mapping[str, Served]) -> OfKind:
    got = [o for o in outcomes if o.failure is None]
    return OfKind(
        asked=len(outcomes),
        failed=len(outcomes) - len(got),
        waits=Waits.of(answered[o.request.asked.id].began - o.asked_at for o in got),
    )


def fairness(agents: Iterable[Agent], served: Iterable[Served]) -> float:
    """Jain's index over what each agent was served, as the line to the model counts it: output twice."""
    got = {agent.name: 0.0 for agent in agents}
    for each in served:
        got[each.id.partition("/")[0]] += weighted_cost(each.input, each.output)
    return jain_index(got.values())
