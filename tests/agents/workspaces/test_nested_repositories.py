"""New repositories in a workspace are found, by a bounded look that no link leads astray."""

import os
from pathlib import Path

import pytest

from agentos.agents.workspaces import nested_repositories
from agentos.agents.workspaces.nested_repositories import Repositories, find_repositories


def test_those_below_the_top_are_found_and_the_tops_own_is_not(tmp_path: Path) -> None:
    for place in (".git", "sub/.git", "a/b/c/.git"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "worktree").mkdir()
    (tmp_path / "worktree" / ".git").write_text("gitdir: /elsewhere")

    found = find_repositories(str(tmp_path))

    assert (sorted(found.found), found.whole) == (["a/b/c/.git", "sub/.git", "worktree/.git"], True)


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "other" / "sub" / ".git").mkdir(parents=True)
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(tmp_path / "other")

    assert find_repositories(str(tmp_path / "top")) == Repositories([])


def test_a_look_at_too_much_ends_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested_repositories, "MAX_ENTRIES", 10)
    for number in range(11):
        (tmp_path / str(number)).mkdir()

    found = find_repositories(str(tmp_path))

    assert not found.whole
    assert found.sentences(Repositories()) == ["its workspace is too large to look for all new repositories in it"]


def test_only_new_repositories_are_told_and_control_characters_are_escaped() -> None:
    before, after = Repositories(["old/.git"]), Repositories(["old/.git", "a\x1b[2J\n/.git", os.fsdecode(b"\xff/.git")])

    assert after.sentences(before) == [
        "its workspace has a new repository at a\\x1b[2J\\x0a/.git: git there does what its configuration says",
        "its workspace has a new repository at \\xff/.git: git there does what its configuration says",
    ]
    assert before.sentences(before) == []


def test_of_many_a_few_are_told() -> None:
    *first, last = Repositories([f"{number:02}/.git" for number in range(25)]).sentences(Repositories())

    assert (len(first), last) == (10, "its workspace has 15 more new repositories")
