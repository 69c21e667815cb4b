"""Tests that run alone are collected without the others, and none of them is missed."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.runs.costs import ALONE, ROOT, check_places, has_none_wanted
from tests.support.runs.rows import each_row


def item(path: str, *marks: str) -> pytest.Item:
    return cast(pytest.Item, SimpleNamespace(path=ROOT / path, get_closest_marker=lambda name: name in marks))


@each_row(
    ("path", "expression", "left_out"),
    [
        ("tests", "alone", False),
        ("tests/security", "alone", False),
        ("tests/security/kernel/test_totals.py", "alone and not guest", False),
        ("tests/system/sandboxes", "alone", False),
        ("tests/system/sandboxes/test_jail_guest.py", "alone", True),
        ("tests/llm", "alone and not guest", True),
        ("tests/llm", "not alone", False),
        ("tests/llm", "", False),
    ],
)
def test_places_without_tests_that_run_alone_are_left_out(path: str, expression: str, left_out: bool) -> None:
    assert has_none_wanted(ROOT / path, expression) == left_out


def test_a_test_that_runs_alone_elsewhere_is_an_error() -> None:
    check_places([item("tests/security/kernel/test_totals.py", "alone"), item("tests/llm/test_line.py", "kernel")])

    with pytest.raises(pytest.UsageError, match=r"tests/llm/test_line.py has tests that run alone: add it to ALONE"):
        check_places([item("tests/llm/test_line.py", "alone")])


def test_each_place_exists() -> None:
    assert [place for place in ALONE if not Path(ROOT, place).exists()] == []
