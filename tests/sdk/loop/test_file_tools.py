"""Changes of files that would be too large, or take too long."""

import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk.loop import file_tools
from agentos_sdk.loop.file_tools import plan_edit, search_files
from agentos_sdk.loop.tools import Plan, ToolError
from tests.support.wire import PATIENCE


def planned(text: str, **arguments: Any) -> Plan:
    """The plan of an edit of a file with this content, which is the reply of READ."""
    work = plan_edit({"path": "/file", **arguments})
    next(work)
    try:
        work.send({"success": True, "content": b64encode(text.encode()).decode(), "size": len(text.encode())})
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("one READ has the whole file")


def test_a_replacement_that_multiplies_a_file_is_refused() -> None:
    with pytest.raises(ToolError, match="at most 8 MiB can be written"):
        planned("a" * 1_000_000, old_text="a", new_text="b" * 1_000_000, replace_all=True)


def test_an_ambiguous_piece_of_a_large_file_is_refused_at_once() -> None:
    began = time.process_time()

    with pytest.raises(ToolError, match=r"contains it 1000000 times, in lines 1, 2, 3.*, 10:"):
        planned("a\n" * 1_000_000, old_text="a", new_text="b")

    assert time.process_time() - began < PATIENCE  # counting lines up to each occurrence takes longer


def test_line_breaks_of_windows_stay() -> None:
    assert planned("a\r\nb\r\n", old_text="b", new_text="c").content == "a\r\nc\r\n"


def test_a_search_finds_lines_of_files_and_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("sub/a.txt").write_text("one\nzwölf\n")
    Path("b.txt").write_text("zwei\n")
    Path("image").write_bytes(b"\0zw")

    assert search_files(".", "^zw") == "b.txt:1: zwei\nsub/a.txt:2: zwölf"
    assert search_files("sub/a.txt", "ö") == "sub/a.txt:2: zwölf"
    assert search_files("sub", "zwei") == "no line matches"
    with pytest.raises(ToolError, match="none: no such file or directory"):
        search_files("none", "x")


@pytest.mark.parametrize("pattern", ["-e", "\0", "\ud800", "x" * 200_000])
def test_any_pattern_is_searched_for(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")

    assert search_files(str(tmp_path), pattern) == "no line matches"


def test_a_pattern_that_is_no_expression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="pattern: not a regular expression: unterminated character set"):
        search_files(str(tmp_path), "[")


def test_a_search_that_would_take_years_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tools, "SEARCH_SECONDS", 0.5)
    (tmp_path / "long.txt").write_text("a" * 100 + "!\n")

    with pytest.raises(ToolError, match=r"pattern: the search was ended after 0\.5 s"):
        search_files(str(tmp_path), "(a+)+$")
