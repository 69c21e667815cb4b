"""Coding agents of others, unmodified, by their presets: each does a task in a jail, from a vendor that has trouble.

``make agents`` installs them all; ``.ci/run`` one.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field, frozen

from agentos.llm.providers.provider import Question
from agentos.presets import read_preset
from agentos_sdk.values import ToolCall, Usage
from tests.conftest import OwnKernel
from tests.frameworks.tried import version_of, write_row
from tests.llm.vendors.script import Break, Called, Refuses, Says, Script, Text
from tests.support.commands import run_agentos
from tests.support.kernel import environment, until
from tests.support.servers.vendor import vendor
from tests.system.agents import info, lines

PLACE = Path(sys.prefix, "coding")
TABLE = Path(__file__).parents[2] / "docs/reference/coding-agents.md"
TASK = "Make the file made.txt"
COMMAND = "echo by-a-tool > /workspace/made.txt"
AS_AUTHOR = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
CACHED = Usage(900, 7, cache_read=512)


@frozen
class Program:
    """``words`` stand for the first word of the preset's command, ``[]``: it is a script of a Python environment.

    ``tool`` runs a command, with ``arguments``, or ``says`` is what makes the file; ``end`` are the arguments with
    which the program is to end. ``leaves`` names what it can't be told to keep elsewhere.
    """

    words: Sequence[str] = ()
    tool: str = ""
    arguments: Mapping[str, Any] = {}
    says: str = ""
    end: Mapping[str, Any] | None = None
    leaves: Collection[str] = ()


NODE = "/agent/node_modules/.bin"
PROGRAMS = {
    "aider": Program(says="made.txt\n```\nby-a-tool\n```\n", leaves=[".aider.tags.cache.v4"]),
    "claude-code": Program([f"{NODE}/claude"], "Bash", {"command": COMMAND, "description": "make it"}),
    "codex": Program([f"{NODE}/codex"], "exec_command", {"cmd": COMMAND}),
    "gemini-cli": Program([f"{NODE}/gemini"], "run_shell_command", {"command": COMMAND, "description": "make it"}),
    "opencode": Program([f"{NODE}/opencode"], "bash", {"command": COMMAND, "description": "make it"}),
    "qwen-code": Program([f"{NODE}/qwen"], "run_shell_command", {"command": COMMAND, "is_background": False}),
    "mini-swe-agent": Program(
        tool="bash", arguments={"command": COMMAND}, end={"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
    ),
}


@define
class Scripted:
    """First trouble, then a call of the tool wherever it is offered and hasn't been called, else the end."""

    program: Program
    trouble: list[Script] = field(
        factory=lambda: [
            Refuses(429, "slow down", after=0.1),
            Refuses(529, "overloaded"),
            Says([Break("cut")]),
        ]
    )

    def __call__(self, question: Question) -> Script:
        if self.trouble:
            return self.trouble.pop(0)
        called = any(message.calls for message in question.messages)
        if self.program.says:
            return Says([Text(self.program.says)], usage=CACHED)
        if not any(tool.name == self.program.tool for tool in question.tools):
            return Says([Text("A title")])  # asked beside the task
        if not called:
            return self._call(self.program.arguments)
        return self._call(self.program.end) if self.program.end else Says([Text("Done.")], usage=CACHED)

    def _call(self, arguments: Mapping[str, Any]) -> Says:
        return Says([Called(ToolCall("call_1", self.program.tool, arguments))], "tool_calls", CACHED)


def verdicts_of(name: str) -> list[str]:
    """Where it works: of a question, and of a command by its tool."""
    return ["works", "works" if PROGRAMS[name].tool else "it has none"]


@contextmanager
def written_down(name: str) -> Iterator[None]:
    """`make agents` writes into the table of the docs what it tries, and fails where a program does."""
    verdicts = ["fails", "fails"]
    try:
        yield
        verdicts = verdicts_of(name)
    finally:
        if os.environ.get("AGENTOS_TABLE") == "write":
            TABLE.write_text(write_row(TABLE.read_text(), name, version_of(name, PLACE / name), verdicts))


def test_the_table_of_the_docs_has_a_row_for_each_program() -> None:
    page = TABLE.read_text()
    for name in PROGRAMS:
        [version] = re.findall(rf"^\| `{name}` \| .* (\d+\.[\d.]+) \|", page, re.MULTILINE)
        assert write_row(page, name, version, verdicts_of(name)) == page
        assert f" {version}x |" in write_row(page, name, f"{version}x", ["fails", "fails"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_coding_agent_does_a_task_in_its_jail(
    framework: None, own_kernel: OwnKernel, tmp_path: Path, name: str
) -> None:
    program, preset, code = PROGRAMS[name], read_preset(name), PLACE / name
    if not (code / "ready").exists():
        pytest.skip(f"{name} isn't in {code}, run `make agents`: it is NOT tested")
    (work := tmp_path / "work").mkdir()
    (work / "clock.py").write_text("def now():\n    return 12\n")
    for words in (["init", "-q"], ["add", "."], [*AS_AUTHOR, "commit", "-qm", "Tell the time"]):
        subprocess.run(["git", *words], cwd=work, check=True)
    args = [word.replace("{task}", TASK) for word in preset.task[1:]]
    command = f'command = {json.dumps([*program.words, *args])}\ncode = "{code}"'
    script = f'script = "{code}/bin/{preset.task[0]}"\nargs = {json.dumps(args)}\npython = "{code}/bin/python"'
    with written_down(name), vendor() as met:
        scripted = met.models["scripted"] = Scripted(program)
        kernel = own_kernel(
            f"""
            [llm]
            provider = "openai"
            model = "scripted"
            base_url = "{met.base_url}"
            openai_endpoint = true
            retry = {{ first = "50ms" }}
            [[agents]]
            name = "coder"
            framework = "{name}"
            {command if program.words else script}
            restart = "temporary"
            workspace = "{work}"
            """,
            {"OPENAI_API_KEY": met.key},
        )
        with kernel.client() as client:
            until(lambda: info(client, "coder")["state"] not in ("starting", "running"), "it has ended")
            said = [*lines(client, "coder", "stdout"), *lines(client, "coder", "stderr")]
            said.append(str(info(client, "coder")["end"]))
            assert (work / "made.txt").exists(), "\n".join(said)
            assert not scripted.trouble
            assert sum(row["cache_read"] for row in client.usage(name="coder")["usage"]) >= CACHED.cache_read
        assert (work / "made.txt").read_text() == "by-a-tool\n"
        found = {path.name for path in work.iterdir()}
        assert found - {*program.leaves} == {".git", "clock.py", "made.txt"}, "what a program keeps at home is outside"


REPAIRS = {"claude-code": "s/a - b/2 * a/", "codex": "s/a - b/a + b/", "loop": "s/a - b/b + a/"}
TOOLS = {"claude-code": ("Bash", "command"), "codex": ("exec_command", "cmd"), "loop": ("exec", "command")}
TESTED = "test:\n\tpython3 -c 'import add; assert add.add(2, 2) == 4; assert add.add(2, 3) == 5'\n"


def test_two_coding_agents_and_the_loop_try_one_task_and_one_is_taken(
    framework: None, own_kernel: OwnKernel, tmp_path: Path
) -> None:
    """Each repairs the function by the tool that it has; that of Claude Code is wrong."""
    others = [name for name in REPAIRS if name != "loop"]
    if missing := [name for name in others if not (PLACE / name / "ready").exists()]:
        pytest.skip(f"{missing} aren't in {PLACE}, run `make agents`: they are NOT tested")
    (work := tmp_path / "work").mkdir()
    (work / "add.py").write_text("def add(a, b):\n    return a - b\n")
    (work / "Makefile").write_text(TESTED)

    def answer(question: Question) -> Script:
        offered = {tool.name for tool in question.tools}
        name = next((name for name in TOOLS if TOOLS[name][0] in offered), None)
        if name is None:
            return Says([Text("A title")])
        tool, key = TOOLS[name]
        if not any(message.calls for message in question.messages):
            arguments = {key: f"sed -i '{REPAIRS[name]}' /workspace/add.py"}
            return Says([Called(ToolCall("call_1", tool, arguments))], "tool_calls", CACHED)
        if name == "loop":
            return Says([Called(ToolCall("call_2", "done", {"summary": "It adds."}))], "tool_calls", CACHED)
        return Says([Text("It adds.")], usage=CACHED)

    with vendor() as met:
        met.models["scripted"] = answer
        llm = f'[llm]\nprovider = "openai"\nmodel = "scripted"\nbase_url = "{met.base_url}"\nopenai_endpoint = true'
        kernel = own_kernel(llm, {"OPENAI_API_KEY": met.key})
        found = ":".join(f"{PLACE}/{name}/node_modules/.bin" for name in others)
        env = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, "PATH": f"{found}:{os.environ['PATH']}"}
        tries = ["--attempts", "3", *(word for name in REPAIRS for word in ("--with", name)), "--check", "make test"]
        words = ["task", *tries, "--budget", "tokens=100000", "--json", "--dir", str(work), "Repair add.py"]
        done = run_agentos(words, kernel.place, env)
        assert done.returncode == 0, done
        rows = json.loads(done.stdout.splitlines()[-1])["attempts"]
        verdicts = {row["by"]: row["verdict"] for row in rows}
        assert verdicts == {"claude-code": "exit 2", "codex": "passed", "loop": "passed"}, done
        assert all(row["tokens"] >= CACHED.input for row in rows)
        taken = next(row["attempt"] for row in rows if row["by"] == "codex")
        assert run_agentos(["apply", taken, "--yes"], kernel.place, env).returncode == 0
    assert (work / "add.py").read_text() == "def add(a, b):\n    return a + b\n"
