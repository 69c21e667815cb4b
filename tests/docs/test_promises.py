"""Each promise names tests that exist and are run. The test modules are parsed, and not imported."""

import ast
import re
from collections.abc import Sequence
from functools import cache

from attrs import frozen

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "reference" / "promises.md"
ROW = re.compile(r"^\| (?P<promise>.+?) \| (?P<tests>.*?) ?\|$")
HEAD = ("promise", "tests")
TEST = re.compile(r"`(?P<file>[^`]*?)::(?P<function>[^`]*)`")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@frozen
class Row:
    """One row of a table: its line, its promise, and the file and function of each test."""

    line: int
    promise: str
    tests: tuple[tuple[str, str], ...]


def read_rows(text: str) -> list[Row]:
    """The rows of all tables; a line of a table that is no row is an error."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|") or line == "|---|---|":
            continue
        found = ROW.match(line)
        assert found is not None, f"line {number} is no row of two columns: {line}"
        if (found["promise"], found["tests"]) != HEAD:
            rows.append(Row(number, found["promise"], tuple(TEST.findall(found["tests"]))))
    return rows


@cache
def parts_of(file: str) -> Sequence[str]:
    """What stands at the top level of a file, with two blank lines between; nothing where there is no such file."""
    path = ROOT / file
    return path.read_text().split("\n\n\n") if path.is_file() else ()


def find_function(file: str, name: str) -> Function | None:
    """A function at the top level of a file. Only its part is parsed: whole files take seconds."""
    begins = re.compile(rf"^(?:async )?def {name}\(", re.MULTILINE)
    part = next(filter(begins.search, parts_of(file)), "")
    functions = [
        node for node in ast.parse(part, file).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return next((function for function in functions if function.name == name), None)


def is_always_skipped(function: Function) -> bool:
    """Whether it has the mark ``skip``, or begins with a call of ``pytest.skip``."""
    marks = [ast.unparse(mark) for mark in function.decorator_list]
    steps = [ast.unparse(node.value) for node in function.body if isinstance(node, ast.Expr)]
    return any(mark.split("(")[0] == "pytest.mark.skip" for mark in marks) or any(
        step.startswith("pytest.skip(") for step in steps
    )


def find_faults(text: str) -> list[str]:
    """What is wrong with the page: one sentence with line and promise for each fault."""
    faults = []
    for row in read_rows(text):
        where = f"{PAGE.name}:{row.line}: {row.promise!r}"
        if not row.tests:
            faults.append(f"{where} names no test")
        for file, name in row.tests:
            function = find_function(file, name)
            if function is None:
                faults.append(f"{where}: there is no {file}::{name}: name another test that proves it")
            elif not name.startswith("test_") or is_always_skipped(function):
                faults.append(f"{where}: {file}::{name} is never run")
    return faults


def test_each_promise_names_tests_that_exist_and_are_run() -> None:
    faults = find_faults(PAGE.read_text())

    assert faults == [], "\n".join(faults)


def test_no_promise_stands_twice() -> None:
    promises = [row.promise for row in read_rows(PAGE.read_text())]

    assert len(promises) > 100
    assert len(set(promises)) == len(promises)


def test_a_row_without_a_test_and_one_that_names_no_test_are_faults() -> None:
    real = "tests/docs/test_promises.py"
    text = (
        "| promise | tests |\n|---|---|\n"
        f"| Good. | `{real}::test_no_promise_stands_twice` |\n"
        "| Empty. | |\n"
        f"| Gone. | `{real}::test_that_was_removed`, `tests/docs/gone.py::test_x` |\n"
        f"| No test. | `{real}::find_faults` |\n"
    )

    assert find_faults(text) == [
        "promises.md:4: 'Empty.' names no test",
        f"promises.md:5: 'Gone.': there is no {real}::test_that_was_removed: name another test that proves it",
        "promises.md:5: 'Gone.': there is no tests/docs/gone.py::test_x: name another test that proves it",
        f"promises.md:6: 'No test.': {real}::find_faults is never run",
    ]


def test_a_function_that_is_skipped_without_a_condition_is_never_run() -> None:
    source = (
        "@pytest.mark.skip(reason='later')\ndef test_marked(): ...\n"
        "def test_left():\n    pytest.skip('later')\n"
        "@pytest.mark.skipif(ROOT, reason='x')\ndef test_run():\n    if ROOT:\n        pytest.skip('no')\n"
    )
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]

    assert [is_always_skipped(function) for function in functions] == [True, True, False]
