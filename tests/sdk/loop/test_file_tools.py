"""Changes of files that would be too large, or take too long."""

import time
from base64 import b64encode
from typing import Any

import pytest

from agentos_sdk.loop.file_tools import plan_edit
from agentos_sdk.loop.tools import Plan, ToolError


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

    assert time.process_time() - began < 2


def test_line_breaks_of_windows_stay() -> None:
    assert planned("a\r\nb\r\n", old_text="b", new_text="c").content == "a\r\nc\r\n"
