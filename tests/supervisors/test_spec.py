import contextlib
from typing import Any

import pytest

from supervisors import Backoff, ChildSpec, SpecError, SupervisorSpec, Task, Template
from tests.support.runs.rows import each_row


async def nothing() -> None: ...


def child(name: str = "a", **terms: Any) -> ChildSpec:
    return ChildSpec(name, Task(nothing), **terms)


@each_row(
    ("flags", "code"),
    [
        ({"strategy": "two_for_one"}, "invalid_strategy"),
        ({"intensity": -1}, "invalid_intensity"),
        ({"intensity": 1.5}, "invalid_intensity"),
        ({"period": 0}, "invalid_period"),
        ({"period": "5"}, "invalid_period"),
        ({"auto_shutdown": "sometimes"}, "invalid_auto_shutdown"),
        ({"children": [child(), child("b"), child()]}, "duplicate_child"),
        ({"children": [child(restart="transient", significant=True)]}, "bad_combination"),
        ({"strategy": "simple_one_for_one"}, "bad_combination"),
        ({"template": Template(lambda: Task(nothing))}, "bad_combination"),
    ],
)
def test_a_supervisor_that_cannot_be_is_refused_by_otps_name(flags: dict[str, Any], code: str) -> None:
    with pytest.raises(SpecError) as refused:
        SupervisorSpec(**flags)

    assert refused.value.code == code


@each_row(
    ("terms", "code"),
    [
        ({"restart": "never"}, "invalid_restart_type"),
        ({"shutdown": -1}, "invalid_shutdown"),
        ({"shutdown": "soon"}, "invalid_shutdown"),
        ({"shutdown": []}, "invalid_shutdown"),
        ({"significant": True}, "bad_combination"),
    ],
)
def test_a_child_that_cannot_be_is_refused_by_otps_name(terms: dict[str, Any], code: str) -> None:
    with pytest.raises(SpecError) as refused:
        child(**terms)

    assert (refused.value.code, refused.value.id) == (code, "a")


def test_an_intensity_out_of_reach_of_the_backoff_is_refused_with_the_way_out() -> None:
    slow = Backoff(first=2, min=2, factor=2, max=8, jitter=0)

    with pytest.raises(SpecError) as refused:
        SupervisorSpec([child(backoff=slow)], intensity=5, period=10)

    assert refused.value.code == "unreachable_intensity"
    assert str(refused.value) == (
        "child 'a': with its backoff 6 restarts take 24 s at least, so intensity 5 in 10 s is never exceeded and a "
        "child that always fails would be restarted for ever; make period at least 24 s, or intensity at most 3, or "
        "give the backoff a max_failures"
    )


@each_row(
    "backoff",
    [
        Backoff(min=1e308, max=1e308, factor=1e308),
        Backoff(min=5e-324, max=1e308),
        Backoff(min=5e-324, max=1e308, factor=1e308),
        Backoff(min=1e-300, max=1e300, factor=1 + 1e-15),
        Backoff(first=1e308, min=1e308, max=1e308),
    ],
)
def test_a_backoff_whose_delays_no_float_can_hold_the_sum_of_is_judged(backoff: Backoff) -> None:
    with contextlib.suppress(SpecError):
        SupervisorSpec([child(backoff=backoff)], intensity=1000, period=60)


@each_row(
    ("intensity", "period", "terms"),
    [
        (5, 24, {"backoff": Backoff(first=2, min=2, max=8, jitter=0)}),
        (3, 10, {"backoff": Backoff(first=2, min=2, max=8, jitter=0)}),
        (5, 10, {"backoff": Backoff(first=2, min=2, max=8, jitter=0, max_failures=9)}),
        (5, 10, {"backoff": Backoff(first=2, min=2, max=8, jitter=0), "restart": "temporary"}),
        (0, 1, {"backoff": Backoff(first=30)}),
    ],
)
def test_each_way_out_is_one(intensity: int, period: float, terms: dict[str, Any]) -> None:
    assert SupervisorSpec([child(**terms)], intensity=intensity, period=period).intensity == intensity


def test_the_defaults_are_otps() -> None:
    spec = SupervisorSpec([child(), ChildSpec("m", SupervisorSpec())])
    worker, supervisor = spec.children

    assert (spec.strategy, spec.intensity, spec.period, spec.auto_shutdown) == ("one_for_one", 1, 5, "never")
    assert (worker.restart, worker.grace(worker.kind(worker.start))) == ("permanent", 5)
    assert supervisor.grace(supervisor.kind(supervisor.start)) == "infinity"
