import math

from hypothesis import given
from hypothesis import strategies as st

from agentos.services.metrics.history import KEPT_SECONDS, MAX_ROWS, TRIMMED_ROWS, History
from agentos.services.metrics.sampler import AGENT_COLUMNS

STEPS = st.lists(st.floats(0.0, 40.0), max_size=400)
VALUES = st.none() | st.floats(0, 1e15)


@given(STEPS, st.lists(VALUES, min_size=1), st.floats(0, KEPT_SECONDS))
def test_it_gives_the_rows_of_the_asked_time_and_forgets_none_too_early(
    steps: list[float], values: list[float | None], asked: float
) -> None:
    history, at, model = History({"one": "d"}), 1.7e9, []
    for number, step in enumerate(steps):
        at += step
        value = values[number % len(values)]
        history.add(at, [value])
        model.append((at, value))

    found = history.since(at - asked)

    assert list(zip(found["at"], found["one"], strict=True)) == [row for row in model if row[0] >= at - asked]


@given(st.floats(0.0, 10.0), st.integers(0, 5000))
def test_an_agent_s_never_takes_more_than_40_kib(step: float, rows: int) -> None:
    history = History(AGENT_COLUMNS)
    for number in range(rows):
        history.add(1.7e9 + number * step, [0.5, 1e9, 3.0])
        assert history.size <= 40 << 10
    assert len(history) <= MAX_ROWS + TRIMMED_ROWS


def test_a_sample_each_second_is_kept_for_15_minutes() -> None:
    history = History(AGENT_COLUMNS)
    for second in range(2000):
        history.add(1.7e9 + second, [0.5, second, 3.0])

    found = history.since(1.7e9 + 1999 - KEPT_SECONDS)

    assert found["memory_bytes"] == list(range(1099, 2000))


def test_a_clock_that_was_set_back_doesn_t_let_it_grow() -> None:
    history = History(AGENT_COLUMNS)
    for second in range(5000):
        history.add(1.7e9 - second, [None, None, None])

    assert len(history) <= MAX_ROWS + TRIMMED_ROWS
    assert all(value is None for value in history.since(-math.inf)["cpu"])
