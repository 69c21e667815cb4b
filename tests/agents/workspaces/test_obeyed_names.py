"""Links that an agent makes where git writes are told, as are names that programs obey."""

import os
from pathlib import Path

from agentos.agents.workspaces.obeyed_names import find_present, sentences


def test_links_where_git_writes_are_told(tmp_path: Path) -> None:
    (tmp_path / ".git/logs").mkdir(parents=True)
    before = find_present(str(tmp_path))
    (tmp_path / ".git/index").symlink_to("../../.ssh/authorized_keys")
    (tmp_path / ".git/logs/a\nb").symlink_to("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").symlink_to("x")
    (tmp_path / ".git/refs").symlink_to("../elsewhere")
    (tmp_path / ".git/info").mkdir()
    for name in (".npmrc", ".git/info/grafts", ".direnv"):
        (tmp_path / name).write_text("")

    new = find_present(str(tmp_path)) - before

    assert sorted(new) == [".direnv", ".git/index", ".git/info/grafts", ".git/logs/a\nb", ".git/refs", ".npmrc"]
    assert list(sentences(new)) == [
        "its workspace has a new .direnv: direnv obeys it, so look at it before that runs there",
        "its workspace has a new .git/info/grafts: git obeys it, so look at it before that runs there",
        "its workspace has a new .npmrc: npm obeys it, so look at it before that runs there",
        "its workspace has a new link .git/index and 2 more: git writes to where it leads, so remove it",
    ]
    [told] = sentences([".git/" + os.fsdecode(b"\xff\x1b")])
    assert "new link .git/\\xff\\x1b: git writes" in told
