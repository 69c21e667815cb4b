"""What a call costs more because it goes through the kernel."""

import time
from collections.abc import Sequence

from attrs import frozen

from tests.speed.processes import pinned

from .simulation.loads import Agent, Request
from .simulation.play import Stage, run, simulator
from .simulation.simulator import Asked, Behaviour
from .simulation.strategies import Ask, Target, ours, package

WARM = 20  # calls that don't count


@frozen
class Overhead:
    """Seconds, of calls that the provider answers at once; each round makes one of either kind."""

    direct: Sequence[float]
    above: Sequence[float]  # what the call through the kernel of the same round took more


def overhead(stage: Stage, rounds: int, cpu: int) -> Overhead:
    """All on one CPU: the agent, the kernel and the provider work in turn, and moving between two takes longer."""
    behaviour = Behaviour(slots=1, base=0.0, per_input=0.0, per_output=0.0)
    with pinned(cpu), simulator(behaviour) as url, stage.kernel_for(url, behaviour) as socket:
        target = Target(url, behaviour.slots, [Agent("light-0", "light", ())], socket)
        return run(_in_turn, target, rounds)


async def _in_turn(target: Target, rounds: int) -> Overhead:
    direct: list[float] = []
    through: list[float] = []
    async with package(target) as straight, ours(target) as kernel:
        for number in range(WARM + rounds):
            for ask, times in ((straight, direct), (kernel, through)):
                times.append(await _took(ask, number))
    above = [b - a for a, b in zip(direct, through, strict=True)]
    return Overhead(direct[WARM:], above[WARM:])


async def _took(ask: Ask, number: int) -> float:
    request = Request(Asked(f"light-0/{number}", 60, 20), "light-0", "light")
    begun = time.perf_counter()
    await ask(request)
    return time.perf_counter() - begun
