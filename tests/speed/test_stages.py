"""The tracer of a call's stages, on a real kernel; how long a stage takes, is not asked here."""

import pytest

from tests.speed.processes import MeasurementError
from tests.speed.stages import STAGES, Event, Stage, as_table, measure, resolve, split, trace

STEPS = (Stage("first", "a:f", "begin"), Stage("", "a:f"), Stage("second", "a:f", "begin"), Stage("last", ""))


@pytest.mark.parametrize("call", STAGES)
def test_each_function_exists(call: str) -> None:
    for stage in STAGES[call]:
        if stage.function:
            owner, name = resolve(stage.function)
            assert callable(getattr(owner, name))


@pytest.mark.parametrize("call", STAGES)
def test_the_stages_of_a_call_last_as_long_as_the_call(call: str) -> None:
    stages, taken = measure(call, 2)

    assert len(taken) == 2
    assert all(us >= 0 for each in taken for us in each)
    assert f"{call.upper()}, 2 calls" in as_table(call, stages, taken)


def test_a_stage_lasts_from_the_point_before_it_to_its_own() -> None:
    others: list[Event] = [("a:f", "begin", 900), ("a:g", "begin", 1500), ("a:f", "begin", 9500)]
    events: list[Event] = [("a:f", "begin", 2000), ("a:f", "end", 5000), ("a:f", "begin", 6000), ("a:f", "end", 8000)]

    taken = split(STEPS, sorted([*events, *others], key=lambda event: event[2]), 1000, 9000)

    assert taken == [1, 3, 1, 3]
    lines = as_table("spawn", STEPS, [taken])
    assert [line.split()[-1] for line in lines.splitlines()[1:]] == ["1", "1", "3", "5", "3", "8"]
    assert "unexplained rest" in lines


def test_a_point_that_the_call_does_not_pass_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="second: no begin of a:f in this call"):
        split(STEPS, [("a:f", "begin", 2000), ("a:f", "end", 5000), ("a:f", "begin", 9500)], 1000, 9000)


async def test_a_traced_function_notes_its_begin_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits(value: int) -> int:
        return value

    def fails() -> None:
        raise LookupError

    events: list[Event] = []
    for function in (waits, fails):
        monkeypatch.setattr(f"{__name__}.traced", function, raising=False)
        trace(f"{__name__}:traced", events)
        if function is waits:
            assert await traced(1) == 1  # type: ignore[name-defined] # noqa: F821
        else:
            with pytest.raises(LookupError):
                traced()  # type: ignore[name-defined] # noqa: F821

    assert [point for _, point, _ in events] == ["begin", "end"] * 2
    assert [at for *_, at in events] == sorted(at for *_, at in events)
