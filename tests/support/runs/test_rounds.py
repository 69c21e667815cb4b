"""Property tests of the profile ``ci`` draw the same examples in each run."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.runs.rounds import is_night


def draw() -> list[int]:
    seen: list[int] = []

    @settings(derandomize=True, database=None, max_examples=500)
    @given(st.integers())
    def look(number: int) -> None:
        seen.append(number)

    look()
    return seen


@pytest.mark.skipif(is_night(), reason="at night examples are random")
def test_examples_do_not_depend_on_what_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = draw()
    (tmp_path / "numbers.py").write_text(f"NUMBERS = {[1_000_003 * number for number in range(1, 1000)]}\n")
    spec = importlib.util.spec_from_file_location("numbers_of_a_test", tmp_path / "numbers.py")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setitem(sys.modules, spec.name, module := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)

    assert draw() == before
