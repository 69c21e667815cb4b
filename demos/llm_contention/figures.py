"""What the askers measured, and how fair it was."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from attrs import frozen

from agentos.llm.queue.fair_queue import jain_index, weighted_cost


@frozen
class Result:
    """One question. ``waited`` is all that it took but the provider's own work; times are seconds."""

    answered: bool
    asked_at: float
    answered_at: float
    waited: float
    tokens: int
    cost: float  # tokens, as the line weighs them
    refused: int  # times

    @classmethod
    def read(cls, results: Mapping[str, Any]) -> "Result":
        usage = results.get("usage") or {}
        took = results["answered_at"] - results["asked_at"]
        return cls(
            results["success"],
            results["asked_at"],
            results["answered_at"],
            max(0.0, took - results["worked_ms"] / 1000),
            results.get("tokens", 0),
            weighted_cost(usage.get("input", 0), usage.get("output", 0)) if results["success"] else 0.0,
            results["refused"],
        )

    @property
    def took(self) -> float:
        return self.answered_at - self.asked_at


Results = Mapping[str, Sequence[Result]]  # by agent


def fairness(results: Results) -> float:
    """Jain's index over what each agent had got when the first of them had nothing more to ask: until then all of
    them wanted something all the time."""
    first_done = min(max(result.answered_at for result in own) for own in results.values())
    return jain_index(
        sum(result.cost for result in own if result.answered_at <= first_done) for own in results.values()
    )


def rows(results: Results) -> list[tuple[str, ...]]:
    """A line for each agent: requests, answered, mean seconds, of which waiting, tokens."""
    return [
        (
            agent,
            str(len(own)),
            f"{100 * sum(result.answered for result in own) / len(own):.0f} %",
            f"{fmean(result.took for result in own):.3f} s",
            f"{fmean(result.waited for result in own):.3f} s",
            str(sum(result.tokens for result in own)),
        )
        for agent, own in results.items()
    ]


@frozen
class Summary:
    """One way to the model, for the side-by-side table: seconds, and counts."""

    failed: int
    asked: int
    refused: int
    light_mean: float
    light_longest: float
    all_done: float
    fairness: float

    @classmethod
    def of(cls, results: Results, flooder: str) -> "Summary":
        every = [result for own in results.values() for result in own]
        light = [result.waited for agent, own in results.items() if agent != flooder for result in own]
        return cls(
            sum(not result.answered for result in every),
            len(every),
            sum(result.refused for result in every),
            fmean(light),
            max(light),
            max(result.answered_at for result in every) - min(result.asked_at for result in every),
            fairness(results),
        )
