"""A table of rows as one test: every row is checked, and all rows that fail are reported together."""

# A parametrized row costs each worker that collects it, whether it runs the row or not. So rows that are data for a
# function, or for one shared kernel, are one test; rows that start processes or take long stay parametrized, for these
# have to be spread over the workers. A fixture is set up once for all rows: a row's own state is made in the test.

import contextlib
import functools
import inspect
import reprlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from attrs import frozen

Ids = Callable[[Any], object] | Iterable[object] | None


SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 100  # characters


@frozen
class Row:
    """The arguments of one call of the test, and its name, which is composed only for a row that fails."""

    values: dict[str, Any]
    own: object  # the row's own name, if it has one
    show: Callable[[Any], object] | None  # names a value

    @property
    def name(self) -> str:
        if self.own is not None:
            return str(self.own)
        return "-".join(str((self.show and self.show(value)) or _shown(value)) for value in self.values.values())


class Failures:
    """The rows of a table that failed, each with its place and its error."""

    def __init__(self, file: str) -> None:
        self._file = file  # the module of the test
        self._told: list[str] = []
        self._count = 0

    @contextlib.contextmanager
    def check(self, row: Row) -> Iterator[None]:
        """Note what the block raises as the failure of ``row``; a time-out of the whole test ends it."""
        self._count += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self._told.append(f"[{row.name}] {self._describe(error)}")
            if isinstance(error, pytest.fail.Exception) and "pytest-timeout" in str(error):
                self.report()

    def report(self) -> None:
        """Fail if a row did, with the text of every row that failed."""
        if self._told:
            pytest.fail("\n\n".join([f"{len(self._told)} of {self._count} rows fail:", *self._told]), pytrace=False)

    def _describe(self, error: BaseException) -> str:
        if not isinstance(error, AssertionError | pytest.fail.Exception):
            begin = error.__traceback__
            while begin is not None and begin.tb_frame.f_code.co_filename == __file__:
                begin = begin.tb_next
            return "".join(traceback.format_exception(error.with_traceback(begin))).rstrip()
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._file]
        place = f"{self._file}:{lines[-1]}: " if lines else ""  # no place for the table of a table
        return f"{place}{str(error) or type(error).__name__}"


def each_row(names: str | Sequence[str], rows: Iterable[Any], *, ids: Ids = None) -> Callable[..., Any]:
    """Run the decorated test, plain or async, with each of ``rows`` in turn, as one test.

    The arguments are those of ``pytest.mark.parametrize``, without marks; a second decorator makes the product.
    Raises ValueError for a table without rows, which could not fail, and for a row of another length than ``names``.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = _read(fields, list(rows), ids, single=isinstance(names, str) and len(fields) == 1)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        file = inspect.unwrap(function).__code__.co_filename

        @functools.wraps(function)
        def checked(**fixtures: Any) -> None:
            failures = Failures(file)
            for row in table:
                with failures.check(row):
                    function(**row.values, **fixtures)
            failures.report()

        @functools.wraps(function)
        async def checked_async(**fixtures: Any) -> None:
            failures = Failures(file)
            for row in table:
                with failures.check(row):
                    await function(**row.values, **fixtures)
            failures.report()

        test = checked_async if inspect.iscoroutinefunction(function) else checked
        signature = inspect.signature(function)
        kept = [parameter for parameter in signature.parameters.values() if parameter.name not in fields]
        vars(test)["__signature__"] = signature.replace(parameters=kept)
        return test

    return decorate


def _read(fields: list[str], rows: list[Any], ids: Ids, *, single: bool) -> list[Row]:
    if not rows:
        raise ValueError(f"a table of {', '.join(fields)} without rows checks nothing")
    given = [None] * len(rows) if ids is None or callable(ids) else list(ids)
    show = ids if callable(ids) else None
    table = []
    for number, (row, own) in enumerate(zip(rows, given, strict=True)):
        if hasattr(row, "marks"):  # pytest.param()
            if row.marks:
                raise ValueError(f"row {number} has marks: keep its table parametrized")
            values, own = row.values, row.id or own
        else:
            values = (row,) if single else tuple(row)
        table.append(Row(dict(zip(fields, values, strict=True)), own, show))
    return table


def _shown(value: object) -> str:
    try:
        return str(getattr(value, "__name__", None) or SHORT.repr(value))
    except ValueError:  # an integer of more digits than Python writes
        return f"a large {type(value).__name__}"
