"""New repositories in a workspace are found, by a bounded look that no link leads astray."""

import os
from pathlib import Path

import pytest

from agentos.agents.workspaces import nested_repositories
from agentos.agents.workspaces.hard_links import find_hard_links
from agentos.agents.workspaces.nested_repositories import Repositories, find_repositories


def test_those_below_the_top_are_found_and_the_tops_own_is_not(tmp_path: Path) -> None:
    for place in (".git", "sub/.git", "a/b/c/.git"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "worktree").mkdir()
    (tmp_path / "worktree" / ".git").write_text("gitdir: /elsewhere")

    found = find_repositories(str(tmp_path))

    assert (sorted(found.found), found.whole) == (["a/b/c/.git", "sub/.git", "worktree/.git"], True)


def test_a_directory_that_git_takes_for_a_repository_is_found(tmp_path: Path) -> None:
    for place in ("bare/objects", "bare/refs", "a/linked", "half/objects", "objects", "refs"):
        (tmp_path / place).mkdir(parents=True)
    for place in ("bare/HEAD", "a/linked/HEAD", "a/linked/commondir", "half/HEAD", "HEAD"):
        (tmp_path / place).write_text("")

    assert sorted(find_repositories(str(tmp_path)).found) == ["a/linked", "bare"]


def test_what_no_path_can_say_is_left_out_and_told(tmp_path: Path) -> None:
    """To go down name by name takes the square of the levels: 11,000 kept an agent from starting for minutes."""
    (tmp_path / "sub/.git").mkdir(parents=True)
    deep = os.open(tmp_path, os.O_RDONLY)
    for _ in range(18):
        os.mkdir("d" * 250, dir_fd=deep)
        deep, above = os.open("d" * 250, os.O_RDONLY, dir_fd=deep), deep
        os.close(above)
    os.close(deep)

    assert find_repositories(str(tmp_path)) == Repositories(["sub/.git"], whole=False)
    assert not find_hard_links(str(tmp_path)).whole


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_a_directory_that_the_agent_has_closed_is_told(tmp_path: Path) -> None:
    (tmp_path / "closed/.git").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o311)

    found = find_repositories(str(tmp_path))

    (tmp_path / "closed").chmod(0o700)
    assert not found.whole


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
    assert found.sentences(Repositories()) == [
        "its workspace is too large or too deep to look for all new repositories in it"
    ]


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


def test_as_many_entries_are_looked_at_and_repositories_told_as_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/.git").mkdir(parents=True)
    (tmp_path / "b/.git").mkdir(parents=True)

    monkeypatch.setattr(nested_repositories, "MAX_ENTRIES", 4)
    found = find_repositories(str(tmp_path))
    assert (sorted(found.found), found.whole) == (["a/.git", "b/.git"], True)
    monkeypatch.setattr(nested_repositories, "MAX_REPORTED", 2)
    assert len(found.sentences(Repositories([], whole=True))) == 2
    monkeypatch.setattr(nested_repositories, "MAX_REPORTED", 1)
    assert found.sentences(Repositories([], whole=True))[1:] == ["its workspace has 1 more new repositories"]
    monkeypatch.setattr(nested_repositories, "MAX_ENTRIES", 3)
    assert not find_repositories(str(tmp_path)).whole
