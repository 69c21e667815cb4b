"""Internal errors in the log: bounded lines, and never too many of them."""

import re
import time

import pytest

from agentos.kernel.internal_errors import MAX_LINES_PER_SECOND, BugLog, describe


def raised(depth: int, bug: Exception) -> Exception:
    def fall(further: int) -> None:
        if further:
            fall(further - 1)
        raise bug

    try:
        fall(depth)
    except Exception as error:
        return error
    raise AssertionError


def test_a_bug_of_a_thousand_frames_and_lines_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    told = BugLog().internal(raised(900, ValueError("line\n" * 10_000)), "EXEC")

    [record] = caplog.records
    line = record.getMessage()
    assert len(line.splitlines()) == 1
    assert len(line) < 1000
    assert record.exc_info is None
    reference = re.match(r"bug ([0-9a-f]{8}) in EXEC: ValueError: 'line\\nline", line)
    assert reference
    assert str(told) == f"a bug in the kernel: look for {reference[1]} in its log"
    assert re.search(
        r" at kernel/test_internal_errors\.py:\d+ \(fall\) < kernel/test_internal_errors\.py:\d+ \(fall\)", line
    )


def test_a_flood_of_bugs_does_not_fill_the_log_and_every_reference_is_found_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bugs, began = BugLog(), time.monotonic()

    told = [str(bugs.internal(raised(3, ValueError()), "EXEC")) for _ in range(2000)]

    seconds = 1 + int(time.monotonic() - began)
    assert MAX_LINES_PER_SECOND <= len(caplog.records) <= MAX_LINES_PER_SECOND * (seconds + 1)
    for reference in {re.sub(r".*look for (\w+) .*", r"\1", text) for text in told}:
        assert f"bug {reference} in EXEC" in caplog.text


def test_what_was_not_logged_is_counted_in_the_next_line(caplog: pytest.LogCaptureFixture) -> None:
    bugs, told = BugLog(), 0
    deadline = time.monotonic() + 60
    while "not logged" not in caplog.text and time.monotonic() < deadline:
        bugs.internal(ValueError(), "EXEC")
        told += 1

    [counted] = re.findall(r"\((\d+) before it were not logged\)", caplog.text)
    assert int(counted) + len(caplog.records) == told


def test_an_error_within_groups_is_told() -> None:
    group = ExceptionGroup("unhandled", [ExceptionGroup("again", [raised(0, KeyError("x"))])])

    assert describe(group).startswith("KeyError: \"'x'\" at kernel/test_internal_errors.py:")


def test_an_error_without_a_text_is_told() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RecursionError

    assert describe(Mute()).startswith("Mute: '(no text: RecursionError)'")
