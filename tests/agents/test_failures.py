from agentos.agents.life.failures import MANY, WINDOW, Failures
from agentos_sdk.values import End


def test_many_failures_are_told_once_in_each_window_whatever_their_pace() -> None:
    failed, step = Failures(), WINDOW / MANY
    told = []
    for number in range(3 * MANY):
        now = number * step
        failed.add(now, End(1, None, "exit status 1"))
        if failed.are_due(now):
            told.append(number)

    assert told == [MANY - 1, 2 * MANY - 1, 3 * MANY - 1]


def test_slower_failures_are_not_many() -> None:
    failed = Failures()
    for number in range(10 * MANY):
        failed.add(number * WINDOW / (MANY - 2), End(1, None, "exit status 1"))
        assert not failed.are_due(number * WINDOW / (MANY - 2))


def test_failures_count_within_a_window_and_each_end_once() -> None:
    failed, end = Failures(), End(7, None, "exit status 7")
    failed.add(0.0, End(1, None, "exit status 1"))
    failed.add(50.0, end)
    failed.add(51.0, end)  # the supervisor reports it once more

    assert [failed.count(now, 60.0) for now in (51.0, 61.0, 200.0)] == [2, 1, 0]
    assert failed.last is end
