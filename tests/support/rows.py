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

Ids = Callable[[Any], object] | Iterable[object] | None


class Failures:
    """The rows of a table that failed, each with its place and its error."""

    def __init__(self, file: str) -> None:
        self._file = file  # the module of the test
        self._told: list[str] = []
        self._count = 0

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Note what the block raises as the failure of row ``name``; a time-out of the whole test ends it."""
        self._count += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self._told.append(f"[{name}] {self._describe(error)}")
            if isinstance(error, pytest.fail.Exception) and "pytest-timeout" in str(error):
                self.report()

    def report(self) -> None:
        """Fail if a row did, with the text of every row that failed."""
        if self._told:
            pytest.fail("\n\n".join([f"{len(self._told)} of {self._count} rows fail:", *self._told]), pytrace=False)

    def _describe(self, error: BaseException) -> str:
        if not isinstance(error, AssertionError | pytest.fail.Exception):
            return "".join(traceback.format_exception(error)).rstrip()
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._file]
        place = f"{self._file}:{lines[-1]}: " if lines else ""  # no place for the table of a table
        return f"{place}{str(error) or type(error).__name__}"


def each_row(names: str | Sequence[str], rows: Iterable[Any], *, ids: Ids = None) -> Callable[..., Any]:
    """Run the decorated test, plain or async, with each of ``rows`` in turn, as one test.

    The arguments are those of ``pytest.mark.parametrize``, without marks; a second decorator makes the product.
    Raises ValueError for a table without rows, which could not fail, and for a row of another length than ``names``.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = _named(fields, list(rows), ids, single=isinstance(names, str) and len(fields) == 1)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        file = inspect.unwrap(function).__code__.co_filename

        @functools.wraps(function)
        def checked(**fixtures: Any) -> None:
            failures = Failures(file)
            for name, row in table:
                with failures.check(name):
                    function(**row, **fixtures)
            failures.report()

        @functools.wraps(function)
        async def checked_async(**fixtures: Any) -> None:
            failures = Failures(file)
            for name, row in table:
                with failures.check(name):
                    await function(**row, **fixtures)
            failures.report()

        test = checked_async if inspect.iscoroutinefunction(function) else checked
        signature = inspect.signature(function)
        kept = [parameter for parameter in signature.parameters.values() if parameter.name not in fields]
        vars(test)["__signature__"] = signature.replace(parameters=kept)
        return test

    return decorate


def _named(fields: list[str], rows: list[Any], ids: Ids, *, single: bool) -> list[tuple[str, dict[str, Any]]]:
    """The rows as keyword arguments, each with its name."""
    if not rows:
        raise ValueError(f"a table of {', '.join(fields)} without rows checks nothing")
    given = None if ids is None or callable(ids) else list(ids)
    named = []
    for number, row in enumerate(rows):
        own = None if given is None else given[number]
        if hasattr(row, "marks"):  # pytest.param()
            if row.marks:
                raise ValueError(f"row {number} has marks: keep its table parametrized")
            own, values = row.id or own, row.values
        else:
            values = (row,) if single else tuple(row)
        told = ids if callable(ids) else _shown
        name = own if own is not None else "-".join(str(told(value) or _shown(value)) for value in values)
        named.append((str(name), dict(zip(fields, values, strict=True))))
    return named


def _shown(value: object) -> str:
    return str(getattr(value, "__name__", None) or SHORT.repr(value))


SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 100
