"""The arithmetic between what is asked and the kernel's units, and the sentences made of what it counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.cgroups import values
from agentos.sandbox.cgroups.values import CgroupError, EnforcedLimits, Evidence, Limits
from agentos_sdk.encoding import quantities
from tests.support.runs.rows import each_row

shares = st.floats(values.MIN_CPU, 10_000, allow_nan=False)


@given(shares)
def test_a_cpu_share_becomes_turns_that_the_kernel_takes_and_that_are_no_more_than_it(share: float) -> None:
    quota, period = values.cpu_quota(share)

    assert quota >= values.MIN_CPU_QUOTA
    assert values.MIN_CPU_QUOTA <= period <= values.MAX_CPU_PERIOD
    assert share * 0.99 <= quota / period <= share * (1 + 1e-9) or share > values.MAX_CPUS


@given(st.integers(1, 10_000))
def test_a_weight_comes_back_from_shares_nearly_unchanged(weight: int) -> None:
    back = values.weight_from_shares(values.shares_from_weight(weight))

    assert EnforcedLimits(weight=back).describe_weaker(Limits(weight=weight)) is None


@given(st.integers(1, 10**15 - 1))
def test_a_short_size_reads_back_as_the_same_size(size: int) -> None:
    assert quantities.size(values.format_size(size)) == size


@each_row(
    ("evidence", "said"),
    [
        (Evidence(), ()),
        (Evidence(memory_limit=256 << 20, out_of_memory=True), ("memory limit 256M reached",)),
        (Evidence(killed_above=2), ("killed for memory by a limit above its own, or by the host",)),
        (Evidence(pids_limit=64, forks_refused=3), ("fork refused: 64 processes",)),
        (
            Evidence(pids_limit=64, forks_refused=3, refused_above=True),
            ("fork refused: the processes of a group above it were used up",),
        ),
        (Evidence(throttled=0.879), ("throttled 87 % of the time",)),
        (Evidence(throttled=0.004), ()),
    ],
)
def test_evidence_speaks_plainly(evidence: Evidence, said: tuple[str, ...]) -> None:
    assert evidence.describe() == said


def test_throttling_is_a_share_of_the_time_it_was_ready_to_run() -> None:
    assert values.throttled_share(throttled=9, used=1) == 0.9
    assert values.throttled_share(throttled=0, used=0) == 0
    assert values.throttled_share(throttled=0, used=5) == 0


@each_row(
    ("found", "asked"),
    [
        (EnforcedLimits(), Limits(memory=4096)),
        (EnforcedLimits(memory=8192), Limits(memory=4096)),
        (EnforcedLimits(pids=65), Limits(pids=64)),
        (EnforcedLimits(cpu=0.6), Limits(cpu=0.5)),
        (EnforcedLimits(weight=100), Limits(weight=10)),
    ],
)
def test_a_weaker_limit_than_asked_is_noticed(found: EnforcedLimits, asked: Limits) -> None:
    assert found.describe_weaker(asked)


def test_a_limit_as_strict_as_asked_or_stricter_is_none_the_worse() -> None:
    found = EnforcedLimits(memory=4096, pids=64, cpu=0.25, weight=100)

    assert found.describe_weaker(Limits(memory=5000, pids=64, cpu=0.5, weight=100)) is None


@given(st.frozensets(st.sampled_from(sorted(values.CONTROLLERS))))
def test_limits_can_be_cut_to_what_there_is(there: frozenset[str]) -> None:
    limits = Limits(memory=4096, pids=5, cpu=0.5, weight=10)

    assert limits.restrict_to(there).controllers == there


@each_row("name", ["", ".", "..", "a/b", "self", "kernel", "tasks", "memory.max", "a b", "ä", "x" * 129])
def test_names_that_leave_the_group_or_clash_with_its_files_are_refused(name: str) -> None:
    with pytest.raises(CgroupError):
        values.validate_name(name)


@each_row("wrong", [{"memory": 0}, {"pids": 0}, {"cpu": 0.0001}, {"weight": 0}, {"weight": 10_001}])
def test_limits_that_no_kernel_takes_are_not_made(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Limits(**wrong)  # type: ignore[arg-type]
