"""What a test costs, told by the fixtures that it uses: marks by which the targets of the Makefile choose.

No test is marked by hand. One that starts a kernel uses ``own_kernel`` or ``kernels``, one that is content with its
module's uses ``kernel`` or ``declare``; the start of a kernel fails in a test that uses none of them.
"""

import re
from pathlib import Path

import pytest

MARKS = {
    "guest": {"guest", "guests"},
    "browser": {"chromium"},
    "framework": {"framework"},
    "page": {"executed_page"},
    "slow": {"long"},
    "any_user": {"any_user"},
    "alone": {"both_cores", "attacked", "guests"},  # guests take all CPUs, and each worker would boot its own
}
SLOW = ("slow", "guest", "browser", "framework", "page")
SLOW_TIMEOUT = 1800  # seconds; a guest has 600
# Where all tests are that run alone: to collect the others for them takes 12 s.
ALONE = (
    Path("tests/security"),
    Path("tests/system/sandboxes/test_waiting_jails.py"),
    Path("tests/speed/llm/test_gateway.py"),
    Path("tests/architecture/test_roads.py"),
)
ROOT = Path(__file__).parents[3]

may_start_kernels = True  # the test that runs now; the programs of tests may


def mark(items: list[pytest.Item], with_timeout: bool) -> None:
    """Mark the tests by their fixtures, and give slow ones more time."""
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for name, fixtures in MARKS.items():
            if used & fixtures:
                item.add_marker(name)
        if getattr(getattr(item, "callspec", None), "params", {}).get("attacked", "here") != "here":
            item.add_marker("guest")
        if "own_kernel" in used or ("kernels" in used and not used & {"kernel", "declare"}):
            item.add_marker("kernel")
        if with_timeout and is_slow(item):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


def has_none_wanted(path: Path, expression: str) -> bool:
    """Whether no test in this file or directory runs alone, while ``expression``, pytest's ``-m``, asks for such."""
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return bool(re.match(r"alone\b", expression)) and not any(
        where.is_relative_to(place) or place.is_relative_to(where) for place in ALONE
    )


def check_places(items: list[pytest.Item]) -> None:
    """Raise pytest.UsageError if a test that runs alone would not be found."""
    alone = {item.path for item in items if item.get_closest_marker("alone")}
    for path in sorted(alone):
        if has_none_wanted(path, "alone"):
            raise pytest.UsageError(f"{path} has tests that run alone: add it to ALONE in {__file__}")


def put_slow_files_first(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that the workers end at about the same time."""
    slow = {item.path for item in items if is_slow(item)}
    items.sort(key=lambda item: item.path not in slow)


def is_slow(item: pytest.Item) -> bool:
    return any(mark.name in SLOW for mark in item.own_markers)
