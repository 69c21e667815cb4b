from collections.abc import Sequence

import pytest

from supervisors.exits import Exit, Reason
from supervisors.strategy import AutoShutdown, Restart, Strategy, affected, comes_back, shuts_down
from tests.support.runs.rows import each_row


@pytest.mark.parametrize(
    ("restart", "back_after"),
    [
        ("permanent", {"normal", "shutdown", "shutdown_term", "crash", "killed", "failed_start"}),
        ("transient", {"crash", "killed", "failed_start"}),
        ("temporary", set[str]()),
    ],
)
def test_the_kind_of_child_and_the_reason_decide_whether_it_comes_back(restart: Restart, back_after: set[str]) -> None:
    reasons: list[Reason] = ["normal", "shutdown", "shutdown_term", "crash", "killed", "failed_start"]

    assert {reason for reason in reasons if comes_back(restart, Exit(reason))} == back_after


@each_row(
    ("strategy", "ended", "expected"),
    [
        ("one_for_one", "b", ["b"]),
        ("simple_one_for_one", "b", ["b"]),
        ("one_for_all", "b", ["a", "b", "c"]),
        ("rest_for_one", "a", ["a", "b", "c"]),
        ("rest_for_one", "b", ["b", "c"]),
        ("rest_for_one", "c", ["c"]),
    ],
)
def test_the_strategy_decides_which_other_children_are_restarted(
    strategy: Strategy, ended: str, expected: Sequence[str]
) -> None:
    assert list(affected(strategy, ["a", "b", "c"], ended)) == expected


@each_row(
    ("policy", "significant", "others", "expected"),
    [
        ("never", True, False, False),
        ("any_significant", True, True, True),
        ("any_significant", False, False, False),
        ("all_significant", True, True, False),
        ("all_significant", True, False, True),
        ("all_significant", False, False, False),
    ],
)
def test_only_a_significant_end_shuts_the_supervisor_down(
    policy: AutoShutdown, significant: bool, others: bool, expected: bool
) -> None:
    assert shuts_down(policy, significant=significant, others=others) is expected
