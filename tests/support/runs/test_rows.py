"""A table that is one test tries every row, and tells of each that failed."""

from types import SimpleNamespace

import pytest

from tests.support.runs.rows import each_row


def test_every_row_that_fails_is_told_with_its_name_and_what_was_wrong() -> None:
    tried = []

    @each_row(("name", "size"), [("a", 1), ("b", 2), ("c", 3)])
    def check(name: str, size: int) -> None:
        tried.append(name)
        assert size == 2

    with pytest.raises(pytest.fail.Exception, match="2 of 3 rows fail") as failure:
        check()

    assert tried == ["a", "b", "c"]
    assert "['a'-1]" in str(failure.value)
    assert "test_rows.py:" in str(failure.value)
    assert "assert 3 == 2" in str(failure.value)


def test_another_error_is_told_with_its_traceback_and_the_next_row_is_tried() -> None:
    @each_row("divisor", [0, 1, 0], ids=["first", "second", "third"])
    def check(divisor: int) -> None:
        assert 1 / divisor

    with pytest.raises(pytest.fail.Exception, match=r"\[first\] Traceback(.|\n)*\[third\] Traceback(.|\n)*ZeroDiv"):
        check()


def test_an_error_that_was_not_raised_fails_its_row() -> None:
    @each_row("text", ["1", "x", "2"])
    def check(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(pytest.fail.Exception, match=r"2 of 3(.|\n)*\['1'\].*DID NOT RAISE(.|\n)*\['2'\]"):
        check()


def test_two_tables_are_every_pair_and_a_fixture_is_kept() -> None:
    seen = []

    @each_row("left", [pytest.param(1, id="one"), 2])
    @each_row("right", [3, 4])
    def check(world: SimpleNamespace, left: int, right: int) -> None:
        seen.append((world.name, left, right))
        assert (left, right) != (1, 4)

    with pytest.raises(pytest.fail.Exception, match=r"1 of 2 rows fail:\n\n\[one\] 1 of 2 rows fail:\n\n\[4\] /"):
        check(world=SimpleNamespace(name="w"))

    assert seen == [("w", 1, 3), ("w", 1, 4), ("w", 2, 3), ("w", 2, 4)]


async def test_a_table_for_an_async_test_awaits_each_row() -> None:
    seen = []

    @each_row("number", [1, 2, 3])
    async def check(number: int) -> None:
        seen.append(number)
        assert number != 2

    with pytest.raises(pytest.fail.Exception, match="1 of 3 rows fail"):
        await check()

    assert seen == [1, 2, 3]


def test_a_timeout_of_the_whole_test_ends_it() -> None:
    seen = []

    @each_row("number", [1, 2])
    def check(number: int) -> None:
        seen.append(number)
        pytest.fail("Timeout (>1s) from pytest-timeout.")

    with pytest.raises(pytest.fail.Exception, match="1 of 1 rows fail"):
        check()

    assert seen == [1]


def test_a_table_that_could_not_fail_or_has_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="without rows"):
        each_row("text", [])
    with pytest.raises(ValueError, match="row 1 has marks"):
        each_row("text", ["a", pytest.param("b", marks=pytest.mark.slow)])
    with pytest.raises(ValueError, match="argument 2"):
        each_row(("a", "b"), [(1, 2, 3)])
