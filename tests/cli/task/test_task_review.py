"""The diff that a person sees before a task's changes are applied, also of files that an agent wrote to mislead."""

from pathlib import Path

import pytest

from agentos.userland.cli.task import review
from agentos.userland.cli.task.review import diff_lines, find_hunks
from agentos.userland.task.saved_files import Change


def shown(place: Path, before: str, after: str) -> list[str]:
    for name, text in (("before", before), ("after", after)):
        (place / name).mkdir()
        (place / name / "a.py").write_bytes(text.encode())
    return list(diff_lines(str(place / "before"), str(place / "after"), [Change("changed", "a.py")]))[2:]


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_line_ends_where_programs_end_it(tmp_path: Path, separator: str) -> None:
    lines = shown(tmp_path, "allow()\n", f"# for guests:{separator}    deny()\nallow()\n")

    assert len(lines) == 3
    assert lines[1].startswith("+# for guests:\\")
    assert lines[1].endswith("    deny()")


def test_each_change_has_its_lines_around_it_and_the_numbers_of_both_files() -> None:
    before = [str(number) for number in range(1, 41)]
    after = ["new", *before[:20], "x", *before[21:]]

    assert list(find_hunks(before, after)) == [
        "@@ -1,3 +1,4 @@",
        *("+new", " 1", " 2", " 3"),
        "@@ -18,7 +19,7 @@",
        *(" 18", " 19", " 20", "-21", "+x", " 22", " 23", " 24"),
    ]
    assert list(find_hunks(before, before)) == []
    assert list(find_hunks([], ["a"])) == ["@@ -1,0 +1,1 @@", "+a"]
    assert list(find_hunks(before[:5], before[:4])) == ["@@ -2,4 +2,3 @@", " 2", " 3", " 4", "-5"]


def test_a_large_change_is_one_hunk_whatever_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "SequenceMatcher", None)
    before = ["same"] * 5 + [str(number % 134) for number in range(30_000)] + ["end"]
    after = ["same"] * 5 + [str(number * 7 % 133) for number in range(1, 30_000)] + ["end"]

    head, *lines = find_hunks(before, after)

    assert head == "@@ -3,30004 +3,30003 @@"
    assert [line[1:] for line in lines if line[0] in " -"] == before[2:]
    assert [line[1:] for line in lines if line[0] in " +"] == after[2:]


def test_a_file_without_a_line_end_says_so(tmp_path: Path) -> None:
    assert shown(tmp_path, "a\n", "a") == ["@@ -1,1 +1,2 @@", " a", "+\\ no newline at the end"]
