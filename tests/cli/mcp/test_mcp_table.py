"""The table of an MCP server in the text of a configuration file."""

import os
from pathlib import Path

import pytest

from agentos.userland.cli.common import Failed
from agentos.userland.cli.mcp.table import add_table, remove_table, replace_text


def test_a_file_is_written_in_place_whatever_an_agent_has_put_beside_it(tmp_path: Path) -> None:
    file, victim = tmp_path / "agentos.toml", tmp_path / "victim"
    file.write_text("# long\n" * 100)
    victim.write_text("the operator's")
    for name in (".agentos.toml.new", "agentos.toml.new"):
        (tmp_path / name).symlink_to(victim)
    before = file.stat()

    replace_text(file, "[kernel]\n")

    assert (file.read_text(), victim.read_text()) == ("[kernel]\n", "the operator's")
    assert os.path.samestat(file.stat(), before)


def test_where_a_file_cannot_be_written_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"agentos\.toml: can't be written: No such file"):
        replace_text(tmp_path / "agentos.toml", "[kernel]\n")


def test_the_last_table_leaves_a_file_that_is_not_empty() -> None:
    assert remove_table(add_table("", "a", {"command": ["x"]}), "a") == "\n"
