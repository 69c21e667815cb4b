"""A load is really played: against a real kernel, with every question answered."""

import itertools
import shlex
import sys
from pathlib import Path

import pytest

from tests.speed.processes import MeasurementError

from .figures import figures
from .simulation.loads import Agent, contest, modest
from .simulation.play import Stage
from .simulation.scenes import KERNEL
from .simulation.simulator import Behaviour
from .simulation.strategies import STRATEGIES, ours

AT_ONCE = Behaviour(slots=2, base=0.0, per_input=0.0, per_output=0.0)
RUN = [sys.executable, "-m", "agentos", "run"]

pytestmark = [  # OpenAI's package leaves the generators of a stream that has ended to the garbage collector
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def asked(agents: list[Agent]) -> set[str]:
    return {request.asked.id for agent in agents for request in agent.requests}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.usefixtures("kernels")
def test_every_question_of_every_agent_is_answered_once(strategy: str, tmp_path: Path) -> None:
    agents = modest(3, 2)

    outcomes, log = Stage(tmp_path, RUN).play(agents, STRATEGIES[strategy], AT_ONCE)

    assert figures(outcomes, log).failed == 0
    assert [each.fate for each in log.served] == ["answered"] * 6
    assert {each.id for each in log.served} == {o.request.asked.id for o in outcomes} == asked(agents)


@pytest.mark.usefixtures("kernels")
def test_through_a_kernel_no_more_are_in_flight_than_there_are_slots(tmp_path: Path) -> None:
    slow = Behaviour(slots=2, room=2, base=0.02)  # one that is just done may still hold its slot

    outcomes, log = Stage(tmp_path, RUN).play(modest(6, 2), STRATEGIES[KERNEL], slow)

    assert (figures(outcomes, log).failed, log.refused) == (0, {})


@pytest.mark.usefixtures("kernels")
def test_a_load_without_an_end_is_broken_off_when_enough_was_answered(tmp_path: Path) -> None:
    agents = [Agent(agent.name, agent.kind, itertools.cycle(agent.requests), 2) for agent in modest(3, 2)]

    outcomes, _ = Stage(tmp_path, RUN).play(agents, STRATEGIES[KERNEL], AT_ONCE, 2_000)

    tokens = itertools.accumulate(o.request.asked.input + o.request.asked.output for o in outcomes)
    after_enough = [total for total in tokens if total >= 2_000]
    assert 1 <= len(after_enough) <= 3 * 2  # answers that came together with the one that was enough


def test_a_kernel_that_does_not_start_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError):
        Stage(tmp_path, shlex.split("false")).play(contest(2), ours, AT_ONCE, 100)
