"""Two providers behind a real kernel: shares of agents, budgets and outages are measured, not assumed."""

import sys
from pathlib import Path

import pytest

from tests.support.wire import PATIENCE

from .gateway import BUDGET, CLASSES, FALLBACK_AFTER, MODELS, Row, outage, share, spend
from .report import gateway_table
from .simulation.play import Stage
from .simulation.simulator import Outage

RUN = [sys.executable, "-m", "agentos", "run"]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, RUN)


@pytest.mark.usefixtures("both_cores")  # where the agents don't get to ask in time, others get their shares
@pytest.mark.parametrize("slots", [1, 4])
def test_agents_of_three_classes_get_their_shares_of_two_models(stage: Stage, slots: int) -> None:
    assert share(stage, slots, MODELS, CLASSES, PATIENCE, answers=200).value >= 0.98  # few are a batch agent's


@pytest.mark.parametrize("slots", [1, 4])
def test_two_models_together_serve_no_more_than_a_budget(stage: Stage, slots: int) -> None:
    assert 0.9 * BUDGET <= spend(stage, slots).value <= BUDGET


@pytest.mark.parametrize("kind", ["accepts, then sends nothing", "begins, then sends nothing"])
def test_questions_to_a_model_that_accepts_them_and_then_is_silent_go_to_the_next(stage: Stage, kind: Outage) -> None:
    longest = outage(stage, 1, kind, 6).value  # each answer must be the other model's

    assert FALLBACK_AFTER <= longest < PATIENCE


def test_each_case_has_a_row_and_each_concurrency_a_column() -> None:
    rows = [Row("a case", slots, "longest wait, s", slots * 1.5, "{:.2f}") for slots in (1, 4)]

    last = gateway_table(rows).splitlines()[-1]

    assert [cell.strip() for cell in last.strip("|").split("|")] == ["a case", "longest wait, s", "1.50", "6.00"]
