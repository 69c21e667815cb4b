"""What is played: three loads on a provider that refuses requests beyond its room, and two troubled providers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import frozen

from tests.speed.llm.figures import Figures, fairness, figures

from .loads import Agent, contest, flooded, modest
from .play import Stage
from .simulator import Behaviour
from .strategies import STRATEGIES

PROVIDER = Behaviour(slots=4, room=8)
SMALL = Behaviour(slots=2, room=4)
FAST = Behaviour(slots=4, room=8, base=0.0032, per_input=0.00003, per_output=0.00025)  # four times so fast
LIMITING = Behaviour(slots=4, requests=33)  # a second: a third of what its slots could do
FAILING = Behaviour(slots=4, faults=0.3, seed=1)  # by which the first question of all, which doesn't count, is answered

NAIVE, PACKAGE, FIRST_COME, ROUND_ROBIN, KERNEL = STRATEGIES
ALL = tuple(STRATEGIES)
DIRECT = (NAIVE, PACKAGE)

FLOODED, AT_ONCE, CONTEST, LIMITED, FAULTY = "a flooder among them", "all ask at once", "contest", "limited", "faulty"


@frozen
class Scene:
    """A load on a provider; with ``tokens`` it is one without end, broken off when so many have been answered."""

    name: str
    agents: Callable[[], Sequence[Agent]]
    behaviour: Behaviour
    tokens: int | None = None

    def play(self, stage: Stage, strategy: str) -> "Played":
        agents = self.agents()
        outcomes, log = stage.play(agents, STRATEGIES[strategy], self.behaviour, self.tokens)
        jain = None if self.tokens is None else fairness(agents, log.served)
        return Played(self.name, len(agents), strategy, figures(outcomes, log), jain)


@frozen
class Played:
    """``jain`` only where all agents always had work: an agent with few questions has a small share rightly."""

    scene: str
    n: int
    strategy: str
    figures: Figures
    jain: float | None = None


def flood(n: int, seconds: float) -> Scene:
    return Scene(FLOODED, partial(flooded, n, seconds, PROVIDER), PROVIDER)


def at_once(n: int, each: int) -> Scene:
    return Scene(AT_ONCE, partial(modest, n, each), SMALL)


def backlogged(n: int, each: int) -> Scene:
    """So much that each agent can have ``each`` tokens."""
    return Scene(CONTEST, partial(contest, n), FAST, n * each)


def limited(n: int, each: int) -> Scene:
    return Scene(LIMITED, partial(modest, n, each), LIMITING)


def faulty(n: int, each: int) -> Scene:
    return Scene(FAULTY, partial(modest, n, each), FAILING)


Programme = Sequence[tuple[Scene, Sequence[str]]]  # what is played, and with which strategies

WHOLE: Programme = [
    (flood(5, 3), ALL),
    (flood(50, 3), ALL),
    (flood(500, 6), ALL),
    (at_once(5, 4), ALL),
    (at_once(50, 2), ALL),
    (at_once(500, 1), ALL),
    (backlogged(5, 8_000), (PACKAGE, FIRST_COME, ROUND_ROBIN, KERNEL)),
    (backlogged(50, 3_200), (PACKAGE, FIRST_COME, ROUND_ROBIN, KERNEL)),
    (limited(50, 2), (*DIRECT, KERNEL)),
    (faulty(50, 4), (*DIRECT, KERNEL)),
]
QUICK: Programme = [
    (flood(50, 2), (FIRST_COME, KERNEL)),
    (at_once(150, 1), (PACKAGE, KERNEL)),
    (backlogged(50, 3_200), (ROUND_ROBIN, KERNEL)),
]

TITLES: Mapping[str, str] = {
    FLOODED: "A flooder among them",
    AT_ONCE: "All ask at once",
    CONTEST: "All agents always have work",
    LIMITED: "A provider that limits requests",
    FAULTY: "A provider with faults",
}
