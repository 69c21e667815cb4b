"""Coding agents of others, unmodified, by their presets: each does a task by a command in a jail, and says so."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from agentos.presets import read_preset
from tests.conftest import OwnKernel
from tests.support.kernel import until
from tests.system.agents import info, lines

PLACE = Path(sys.prefix, "coding")
TASK = "Make the file made.txt"
COMMAND = "echo by-a-tool > /workspace/made.txt"


@frozen
class Program:
    """``words`` stand for the first word of the preset's command, ``[]``: it is a script of a Python environment.

    ``tool`` runs a command, with ``arguments``; ``end`` are those with which the program is to end.
    ``system``: what the instructions have in a question of the task itself, where the program asks others, too.
    """

    place: str
    words: Sequence[str]
    tool: str
    arguments: Mapping[str, Any]
    system: str = ""
    end: Mapping[str, Any] | None = None


NODE = "/agent/node_modules/.bin"
PROGRAMS = {
    "claude-code": Program("npm", [f"{NODE}/claude"], "Bash", {"command": COMMAND, "description": "make it"}),
    "codex": Program("npm", [f"{NODE}/codex"], "exec_command", {"cmd": COMMAND}),
    "gemini-cli": Program(
        "npm", [f"{NODE}/gemini"], "run_shell_command", {"command": COMMAND, "description": "make it"}
    ),
    "opencode": Program(
        "npm", [f"{NODE}/opencode"], "bash", {"command": COMMAND, "description": "make it"}, "(?i)you are opencode"
    ),
    "qwen-code": Program("npm", [f"{NODE}/qwen"], "run_shell_command", {"command": COMMAND, "is_background": False}),
    "mini-swe-agent": Program(
        "mini-swe-agent",
        [],
        "bash",
        {"command": COMMAND},
        end={"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"},
    ),
}


def inline(values: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()) + " }"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_coding_agent_runs_a_command_in_its_jail(
    framework: None, own_kernel: OwnKernel, tmp_path: Path, name: str
) -> None:
    program, preset = PROGRAMS[name], read_preset(name)
    code = PLACE / program.place
    if not (code / "ready").exists():
        pytest.skip(f"{name} isn't in {code}, run `make agents`: it is NOT tested")
    call = f"tool_calls = [{{ name = {json.dumps(program.tool)}, arguments = {inline(program.arguments)} }}]"
    done = (
        f"tool_calls = [{{ name = 'bash', arguments = {inline(program.end)} }}]" if program.end else "reply = 'Done.'"
    )
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "rules.toml").write_text(
        f"[[rule]]\ntool = {json.dumps(program.tool)}\n{done}\n"
        f"[[rule]]\nsystem = '{program.system}'\n{call}\ntimes = 1\n"
    )
    args = [word.replace("{task}", TASK) for word in preset.task[1:]]
    command = f'command = {json.dumps([*program.words, *args])}\ncode = "{code}"'
    script = f'script = "{code}/bin/{preset.task[0]}"\nargs = {json.dumps(args)}\npython = "{code}/bin/python"'
    kernel = own_kernel(
        f"""
        [llm]
        provider = "offline"
        model = "offline"
        openai_endpoint = true
        offline = {{ rules = "{tmp_path / "rules.toml"}" }}
        [[agents]]
        name = "coder"
        framework = "{name}"
        {command if program.words else script}
        restart = "temporary"
        workspace = "{work}"
        """
    )
    with kernel.client() as client:
        until(lambda: info(client, "coder")["state"] not in ("starting", "running"), "it has ended", seconds=300)
        said = [*lines(client, "coder", "stdout"), *lines(client, "coder", "stderr")]
        said.append(str(info(client, "coder")["end"]))
        assert (work / "made.txt").exists(), "\n".join(said)
    assert (work / "made.txt").read_text() == "by-a-tool\n"
    assert [path.name for path in work.iterdir()] == ["made.txt"], "what a program keeps at home is outside"
