"""Host faults: files that change while they are checked, and those that a configuration names and lacks."""

import os
import sys
from pathlib import Path

import pytest

from agentos.agents.jail.interpreters import interpreter
from agentos.agents.life.host_faults import find_host_faults, find_program_faults
from agentos.agents.spec import AgentSpec
from tests.config.saying import agent, loaded
from tests.support.runs.rows import each_row


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

    [fault] = find_program_faults(AgentSpec("a", script=str(script)))

    assert fault.message == f"{script} is no file"
    assert replaced


ROWS = {  # lines of an agent's table, and the first key that is said
    "script": ('script = "made-later.py"', "script"),
    "program": ('command = ["./made-later"]', "command[0]"),
    "program of the system": ('command = ["/usr/bin/no-such-program"]', "command[0]"),
    "program in code": ('command = ["/agent/x"]\ncode = "."', "command[0]"),
    "code": ('command = ["sh"]\ncode = "made-later"', "code"),
    "program in code that is missing": ('command = ["/agent/x"]\ncode = "made-later"', "code"),
    "workspace": ('script = "a.py"\nworkspace = "made-later"', "workspace"),
    "workspace that no agent may have": ('script = "a.py"\nworkspace = "/etc"', "workspace"),
    "interpreter by its path": ('script = "a.py"\npython = "made-later/bin/python"', "python"),
    "interpreter by its name": ('script = "a.py"\npython = "python9.9"', "python"),
    "working directory": ('command = ["true"]\nisolation = "none"\ncwd = "made-later"', "cwd"),
    "script without a jail": ('script = "made-later.py"\nisolation = "none"', "script"),
}


@each_row(("lines", "key"), ROWS.values(), ids=ROWS)
def test_what_one_agent_names_and_the_host_lacks_does_not_refuse_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("")

    config = loaded('[[supervisor.children]]\nname = "fine"\ncommand = ["true"]\n' + agent(lines))

    fine, lacking = config.root.children
    assert isinstance(fine, AgentSpec)
    assert isinstance(lacking, AgentSpec)
    assert [(fault.agent, fault.path.removeprefix("supervisor.children[1].")) for fault in config.faults] == [
        ("w", key)
    ]
    assert [fault.message for fault in find_host_faults(lacking)] == [config.faults[0].message]
    assert not list(find_host_faults(fine))


def test_a_fault_is_over_when_the_host_has_what_the_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    lines = ('script = "made-later.py"', 'script = "made-later.py"\ncode = "."\nworkspace = "w"\npython = "python9.9"')
    bare, all_of_it = (loaded(agent(one)).root.children[0] for one in lines)
    assert isinstance(bare, AgentSpec)
    assert isinstance(all_of_it, AgentSpec)
    assert (len(list(find_host_faults(bare))), len(list(find_host_faults(all_of_it)))) == (1, 3)

    (tmp_path / "made-later.py").write_text("")
    (tmp_path / "w").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python9.9").symlink_to(sys._base_executable)  # type: ignore[attr-defined]

    assert not [*find_host_faults(bare), *find_host_faults(all_of_it)]
    assert os.path.isfile(interpreter("python9.9").executable)
