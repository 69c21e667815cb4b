"""Changes of files that would be too large, or take too long."""

import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk.loop.tools import file_tools, images, search_program
from agentos_sdk.loop.tools.file_tools import READ_FILE, list_files, plan_edit, search_files
from agentos_sdk.loop.tools.tools import Plan, ToolError, shorten


def planned(text: str | bytes, **arguments: Any) -> Plan:
    """The plan of an edit of a file with this content, which is the reply of READ."""
    work = plan_edit({"path": "/file", **arguments})
    next(work)
    data = text.encode() if isinstance(text, str) else text
    try:
        work.send({"success": True, "content": b64encode(data).decode(), "size": len(data)})
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("one READ has the whole file")


def test_a_replacement_that_multiplies_a_file_is_refused() -> None:
    with pytest.raises(ToolError, match="at most 8 MiB can be written"):
        planned("a" * 1_000_000, old_text="a", new_text="b" * 1_000_000, replace_all=True)


def test_a_file_may_have_the_largest_size_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tools, "MAX_FILE", 10)

    assert planned("a\n", old_text="a", new_text="b" * 9).content == "b" * 9 + "\n"
    with pytest.raises(ToolError, match="/file would have 11 characters"):
        planned("a\n", old_text="a", new_text="b" * 10)


def test_a_list_of_too_many_files_says_how_many_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()

    monkeypatch.setattr(file_tools, "MAX_LISTED", 3)
    assert list_files(str(tmp_path), "*") == "a (0 bytes)\nb (0 bytes)\nc (0 bytes)"
    monkeypatch.setattr(file_tools, "MAX_LISTED", 2)
    assert list_files(str(tmp_path), "*") == "a (0 bytes)\nb (0 bytes)\n[1 more]"


def test_an_ambiguous_piece_of_a_large_file_is_refused_at_once() -> None:
    began = time.process_time()

    with pytest.raises(ToolError, match=r"contains it 1000000 times, in lines 1, 2, 3.*, 10:"):
        planned("a\n" * 1_000_000, old_text="a", new_text="b")

    assert time.process_time() - began < 60  # counting lines up to each occurrence takes longer


def test_line_breaks_of_windows_stay() -> None:
    assert planned("a\r\nb\r\n", old_text="b", new_text="c").content == "a\r\nc\r\n"


EDITS = {
    "two lines": ("one\r\ntwo\r\nthree\r\n", "one\ntwo", "ONE\nTWO", "ONE\r\nTWO\r\nthree\r\n"),
    "one line becomes two": ("one\r\ntwo\r\n", "one", "1\n2", "1\r\n2\r\ntwo\r\n"),
    "the last line becomes two": ("one\r\ntwo", "two", "2\n3", "one\r\n2\r\n3"),
    "a line end at the end": ("one\r\ntwo\r\n", "one\n", "", "two\r\n"),
    "as it is": ("one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2", "1\r\n2\r\n"),
    "the other way": ("one\ntwo\n", "one\r\ntwo", "1\r\n2", "1\n2\n"),
    "of old Macs": ("one\rtwo\rthree", "one\ntwo", "1\n2", "1\r2\rthree"),
    "mixed": ("a\nb\r\nc\r\n", "b\nc", "B\nC", "a\nB\r\nC\r\n"),
    "joined lines": ("one\r\ntwo\r\n", "\ntwo", " two", "one two\r\n"),
    "no line end": ("one", "one", "1\n2", "1\n2"),
    "symbols": ("a.*\r\n(b\r\n", "a.*\n(b", "\\1\n\\g<0>", "\\1\r\n\\g<0>\r\n"),
}


@pytest.mark.parametrize(("text", "old", "new", "expected"), EDITS.values(), ids=EDITS.keys())
def test_line_ends_match_any_and_stay_as_the_file_has_them(text: str, old: str, new: str, expected: str) -> None:
    assert planned(text, old_text=old, new_text=new).content == expected


def test_each_occurrence_keeps_its_line_ends() -> None:
    plan = planned("a\r\nb\r\na\nb\n", old_text="a\nb", new_text="c\nd", replace_all=True)

    assert plan.content == "c\r\nd\r\nc\nd\n"
    with pytest.raises(ToolError, match="contains it 2 times, in lines 1, 3"):
        planned("a\r\nb\r\na\r\nb\r\n", old_text="a\nb", new_text="c")


@pytest.mark.parametrize(
    ("data", "old", "new", "expected"),
    [
        (b"caf\xe9 one\r\ntwo\r\n", "é one\ntwo", "É 1\n2", b"caf\xc9 1\r\n2\r\n"),
        ("ü \ufffd".encode() + b"\xff old", "old", "neu", "ü \ufffd".encode() + b"\xff neu"),
        (b"\xef\xbb\xbfone\r\n", "one", "two", b"\xef\xbb\xbftwo\r\n"),
    ],
)
def test_an_edit_keeps_the_encoding(data: bytes, old: str, new: str, expected: bytes) -> None:
    content = planned(data, old_text=old, new_text=new).content

    assert (content.encode() if isinstance(content, str) else content) == expected


def test_what_the_encoding_does_not_have_is_refused() -> None:
    with pytest.raises(ToolError, match="new_text: '数' isn't in the file's encoding, latin-1"):
        planned(b"caf\xe9", old_text="caf", new_text="数")
    with pytest.raises(ToolError, match="not a text file"):
        planned(b"a\0b", old_text="a", new_text="b")


@pytest.mark.parametrize(
    ("data", "shown"),
    [(b"caf\xe9", "café\n[not UTF-8, shown as Latin-1"), (b"\xc3\xbc \xff", "ü \\xff\n[some bytes aren't UTF-8")],
)
def test_a_file_in_another_encoding_is_shown(data: bytes, shown: str) -> None:
    work = READ_FILE.act(None, {"path": "/file"}, "")  # type: ignore[arg-type]
    next(work)
    refused = "/file: not UTF-8 at byte 3: read it with encoding base64"
    asked = work.send({"success": False, "code": "bad_request", "error": refused})

    with pytest.raises(StopIteration) as ended:
        work.send({"success": True, "content": b64encode(data).decode(), "size": len(data)})

    assert asked.fields["encoding"] == "base64"  # type: ignore[union-attr]
    assert ended.value.value.startswith(shown)


def test_a_binary_file_is_told_with_what_can_be_done() -> None:
    work = READ_FILE.act(None, {"path": "/file"}, "")  # type: ignore[arg-type]
    next(work)
    work.send({"success": False, "code": "bad_request", "error": "/file: not UTF-8: read it with encoding base64"})

    with pytest.raises(ToolError, match="look at it with exec"):
        work.send({"success": True, "content": b64encode(b"\xff\0").decode(), "size": 2})


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


def test_an_empty_file_with_a_mount_on_it_is_a_stub_and_not_listed(tmp_path: Path) -> None:
    for name, text in (("stub", ""), ("empty", ""), ("mounted", "x")):
        (tmp_path / name).write_text(text)
    mounts = {str(tmp_path / "stub"), str(tmp_path / "mounted"), "/"}

    found = [name for name in ("stub", "empty", "mounted") if search_program._is_stub(str(tmp_path / name), mounts)]

    assert found == ["stub"]
    assert "/" in search_program._mount_points()


def test_an_image_may_have_the_largest_size_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(data: bytes) -> tuple[bytes, str]:
        work = images.read_image("/image")
        next(work)
        with pytest.raises(StopIteration) as ended:
            work.send({"success": True, "content": b64encode(data).decode(), "size": len(data)})
        return ended.value.value  # type: ignore[no-any-return]

    png = b"\x89PNG\r\n\x1a\n"
    monkeypatch.setattr(images, "MAX_IMAGE", len(png))

    assert read(png) == (png, "image/png")
    with pytest.raises(ToolError, match="/image has 9 bytes; expected an image of at most"):
        read(png + b"x")
    with pytest.raises(ToolError, match="/image: expected an image: JPEG, PNG"):
        read(b"text")


def test_a_text_above_the_limit_has_its_beginning_and_its_end() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc\n[1 characters left out]\nefg"
