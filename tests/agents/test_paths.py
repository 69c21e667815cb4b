"""Paths in an agent's description: files that change while they are checked."""

import os
import sys
from pathlib import Path

import pytest

from agentos.agents.paths import check_readable
from agentos.agents.spec import BadField


def test_a_fifo_that_replaces_a_script_while_it_is_checked_is_not_waited_for(tmp_path: Path) -> None:
    script, fifo = tmp_path / "script.py", tmp_path / "fifo"
    script.write_text("")
    os.mkfifo(fifo)
    replaced = False

    def replace(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal replaced
        if event == "open" and arguments[0] == str(script) and not replaced:
            replaced = True  # audit hooks can't be removed
            os.rename(fifo, script)

    sys.addaudithook(replace)

    with pytest.raises(BadField, match=r"script\.py is no file"):
        check_readable(str(script))
    assert replaced
