"""Why a supervisor gave up, in a sentence."""

from agentos.agents.tree.give_up import describe_give_up
from supervisors import Exit, StartFailed
from supervisors.exits import IntensityExceeded, TooManyFailures

CRASH = Exit("crash", "exit status 3")
POLLER = Exit("crash", IntensityExceeded("poller", CRASH, 2, 60))


def test_an_escalation_is_called_so_and_has_only_the_innermost_reason() -> None:
    root = Exit("shutdown", IntensityExceeded("poller", POLLER, 2, 5))

    assert (
        describe_give_up(root, counts_escalations=True) == "2 escalations in 5 s; the last time: poller: exit status 3"
    )


def test_a_group_that_gave_up_is_in_the_path_once() -> None:
    container = Exit("crash", IntensityExceeded("team", POLLER, 6, 60))
    root = Exit("shutdown", IntensityExceeded("team", container, 2, 5))

    assert describe_give_up(root, counts_escalations=False) == (
        "2 restarts in 5 s were needed; the last time: team/poller: exit status 3"
    )


def test_a_member_that_did_not_start_is_named() -> None:
    start = Exit("crash", StartFailed("db", OSError("no disk")))
    root = Exit("shutdown", TooManyFailures("team", start, 3))

    assert describe_give_up(root, counts_escalations=True) == (
        "3 failures in a row; the last time: team/db: did not start: no disk"
    )
