"""How many tokens an answer is likely to have: learned per agent and model. No I/O."""

import math
from typing import Final

from attrs import define, field

LEAST: Final = 1024  # tokens that an answer is expected to have at least
RECENT = 0.2  # weight of the last answer in the average
MAX_LEARNED = 10_000  # pairs of an agent and a model; the oldest is forgotten


@define(eq=False)
class AnswerLengths:
    """A longer answer counts at once, shorter ones by a moving average: too much is held back rather than too little.

    Kept in memory: after a restart of the kernel an answer is expected to have :data:`LEAST` tokens again.
    """

    _learned: dict[tuple[str, str], float] = field(factory=dict)

    def likely(self, agent: str, model: str) -> int:
        return max(LEAST, math.ceil(self._learned.get((agent, model), 0.0)))

    def learn(self, agent: str, model: str, generated: int) -> None:
        """Count an answer of so many tokens; 0, where none came, is none."""
        if not generated:
            return
        before = self._learned.pop((agent, model), 0.0)
        self._learned[agent, model] = max(generated, before + RECENT * (generated - before))
        if len(self._learned) > MAX_LEARNED:
            del self._learned[next(iter(self._learned))]
