import math

from hypothesis import given
from hypothesis import strategies as st

from supervisors.strategy import Intensity
from tests.support.runs.rows import each_row


def after(restarts: int, period: float, times: list[float]) -> list[bool]:
    """Whether the intensity was exceeded at each of these times."""
    intensity = Intensity(restarts, period)
    answers = []
    for time in times:
        intensity = intensity.counting(time)
        answers.append(intensity.exceeded)
    return answers


@each_row(
    ("restarts", "period", "times", "expected"),
    [
        (0, 5, [0], [True]),
        (1, 5, [0, 1], [False, True]),
        (1, 5, [0, 5], [False, True]),  # the window includes both its ends
        (1, 5, [0, 5.001], [False, False]),
        (2, 10, [0, 8, 11, 18.5], [False, False, False, False]),
        (2, 10, [0, 8, 11, 18], [False, False, False, True]),
    ],
)
def test_one_restart_more_than_forgiven_exceeds_it(
    restarts: int, period: float, times: list[float], expected: list[bool]
) -> None:
    assert after(restarts, period, times) == expected


@given(st.integers(0, 4), st.floats(0.1, 10), st.lists(st.floats(0, 5), max_size=20))
def test_it_agrees_with_counting_the_whole_history(restarts: int, period: float, gaps: list[float]) -> None:
    times = [sum(gaps[: index + 1]) for index in range(len(gaps))]

    expected = [sum(now - time <= period for time in times[: index + 1]) > restarts for index, now in enumerate(times)]

    assert after(restarts, period, times) == expected


def test_restarts_without_a_limit_are_never_exceeded_and_not_remembered() -> None:
    intensity = Intensity(math.inf, 5)
    for time in range(1000):
        intensity = intensity.counting(time)

    assert (intensity.exceeded, intensity.times, intensity.count(1000)) == (False, (), 0)


def test_those_that_have_left_the_period_count_no_more() -> None:
    intensity = Intensity(3, 5).counting(0).counting(4)

    assert [intensity.count(now) for now in (4, 5, 5.1, 9, 9.1)] == [2, 2, 1, 1, 0]
