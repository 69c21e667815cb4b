"""The list of a diff, in which what isn't applied with the rest stands under a heading."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentos.userland.cli.files.overlays import diff_lines, report

GIT = "git takes it for commits, branches or what is to be committed"


def change(path: str, **more: object) -> Mapping[str, Any]:
    fields = dict.fromkeys(("obeyed", "root", "conflict", "blocked", "diff"))
    return {"path": path, "change": "created", "kind": "file", "size": 3, "mode": "0644", **fields, **more}


def of_git(path: str, root: str = ".git") -> Mapping[str, Any]:
    return change(path, obeyed=GIT, root=root, diff="@@ -0,0 +1,1 @@\n+x\n")


def test_names_to_give_are_headings_and_commits_are_counted() -> None:
    hook = change(".git/hooks/x", obeyed="git obeys it", root=".git/hooks", diff="+run\n")
    inner = of_git("lib/.git/objects/aa", "lib/.git")
    changes = [of_git(".git/objects/aa"), of_git(".git/objects/bb"), of_git(".git/refs/heads/main"), hook, inner]

    commits = [
        {"repository": "", "branch": "main", "commits": 2, "dropped": 0},
        {"repository": "lib", "branch": "x\n", "commits": 1, "dropped": 3},
    ]
    shown = list(diff_lines({"changes": [*changes, change("a\n")], "commits": commits, "more": 2}))

    assert shown == [
        "A a\\n  file 0644, 3 bytes",
        f"only --also .git applies this: {GIT}",
        "2 commits on main",
        "3 files of git's own",
        "only --also .git/hooks applies this: git obeys it",
        "A .git/hooks/x  file 0644, 3 bytes",
        f"only --also lib/.git applies this: {GIT}",
        "1 commit on x\\n, and it loses 3 commits of yours",
        "1 file of git's own",
        "and 2 more: name PATHs to see them",
        "",
        "A .git/hooks/x",
        "+run",
    ]


def test_an_index_that_was_left_is_told_with_what_makes_it_anew(capsys: pytest.CaptureFixture[str]) -> None:
    left = [{"path": path, "reason": "changed"} for path in ("lib/.git/index", "index")]

    status = report({"undone": [], "conflicts": left, "more": 0}, "undone", " (advice)")

    assert status == 3
    assert capsys.readouterr().out.splitlines() == [
        "0 paths undone",
        "  left: lib/.git/index: changed: `git reset` makes it anew",
        "  left: index: changed",
    ]


def test_many_paths_that_were_left_for_one_reason_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = {".git/index": f"{GIT}: it is applied with --also .git", "b": "changed"}
    left = [{"path": path, "reason": reason} for path, reason in reasons.items()]
    left += [{"path": f".git/objects/{number}", "reason": reasons[".git/index"]} for number in range(3)]

    report({"applied": ["a"], "conflicts": left, "more": 1}, "applied", " (advice)")

    assert capsys.readouterr().out.splitlines() == [
        "1 path applied (advice)",
        f"  left: .git/index and 3 more: {GIT}: it is applied with --also .git",
        "  left: b: changed",
        "  and 1 more that aren't listed",
    ]
