"""How often a test tries: profile ``ci`` of Hypothesis repeats itself exactly, ``night`` is random and tries more."""

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

NIGHT = 10  # times as many rounds

T = TypeVar("T")


def register_profiles() -> None:
    """Load ``ci``, whatever Hypothesis would choose by $CI; pytest's ``--hypothesis-profile`` is read later."""
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=slow, max_examples=50
    )
    settings.register_profile(
        "night", deadline=None, print_blob=True, suppress_health_check=slow, max_examples=100 * NIGHT
    )
    settings.load_profile("ci")


def fix_examples() -> None:
    """Keep ``ci`` the same in each run: Hypothesis draws constants of all modules that a process has imported by then.

    Which these are depends on the tests that ran before, and on the worker.
    """
    if settings.get_current_profile_name() == "ci":
        empty = providers._local_constants
        assert not len(empty), "a test was run before"
        providers._get_local_constants = lambda: empty


def rounds(count: int) -> int:
    """``count``, or many times that at night."""
    return count * NIGHT if is_night() else count


def some(rows: Iterable[T], count: int) -> list[T]:
    """The first ``count`` of rows that cost seconds each and take the same ways through our code; all at night."""
    return list(rows) if is_night() else list(islice(rows, count))


def is_night() -> bool:
    return settings.get_current_profile_name() == "night"
