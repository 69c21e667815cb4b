"""Programs of others, unmodified, whose recorded lives of eight turns are forked, and go on after crashes, at each.

Crashes are those of the program, and of the kernel.

``make proof-replay`` takes each turn of each program, ``make test`` some.
"""

import json
import os
import signal
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from agentos.llm.providers.provider import Question
from agentos.presets import read_preset
from agentos.recordings.reader import RecordedCall, read_recording
from agentos_sdk import AgentOSClient
from agentos_sdk.testing.replays import wait_replay
from agentos_sdk.values import ToolCall
from tests.frameworks.programs import INSIDE, need
from tests.frameworks.test_coding_agents import AS_AUTHOR, PLACE, PROGRAMS, Program
from tests.llm.vendors.script import Called, Says, Script, Text
from tests.support.kernel import Kernel, running, until
from tests.support.runs.rounds import some
from tests.support.servers.vendor import vendor
from tests.system.agents import info, known, lines, up

TURNS = 8
LONG = 900  # seconds; beside other load Qwen Code's first command of a life takes a minute, to load its parser
CHOSEN = some([3, 7, 0, 1, 2, 4, 5, 6], 1)  # turns; each takes a start of the program
ALL = {**{name: one for name, one in PROGRAMS.items() if one.tool}, "deepagents": Program(tool="execute")}
FIRST = ["claude-code", "mini-swe-agent"]  # deepagents takes 5 s of CPU to be imported
NAMES = some([*FIRST, *(name for name in ALL if name not in FIRST)], len(FIRST))
LLM = """
[llm]
provider = "openai"
model = "scripted"
base_url = "{url}"
openai_endpoint = true
default_budget = "none"

[[agents]]
name = "coder"
"""
FORKED = """
record = true
restart = "temporary"
workspace = {{ path = "{work}", mode = "overlay" }}
"""
RESUMED = """
on_crash = "resume"
restart = "transient"
max_restarts = 100
backoff = {{ first = 0.01, min = 0.01, max = 0.05 }}
workspace = "{work}"
"""
DEEPAGENTS = """
script = "{inside}/uses_deepagents.py"
python = "{python}"
limits.memory = "1G"
env.LANGSMITH_TRACING = "false"
"""


def describe(name: str) -> str:
    """How the agent runs that program; skips where it isn't installed."""
    if name == "deepagents":
        return DEEPAGENTS.format(inside=INSIDE, python=need("deepagents"))
    code, preset = PLACE / name, read_preset(name)
    if not (code / "ready").exists():
        pytest.skip(f"{name} isn't in {code}, run `make agents`: its forks, and lives after a crash, are NOT tested")
    args = [word.replace("{task}", "Make eight files") for word in preset.task[1:]]
    if words := PROGRAMS[name].words:
        return f'framework = "{name}"\ncommand = {json.dumps([*words, *args])}\ncode = "{code}"\n'
    script = f'script = "{code}/bin/{preset.task[0]}"\npython = "{code}/bin/python"\n'
    return f'framework = "{name}"\n{script}args = {json.dumps(args)}\n'


def make_project(place: Path) -> Path:
    """A git repository: Claude Code tells the model of its state."""
    (work := place / "work").mkdir()
    (work / "clock.py").write_text("def now():\n    return 12\n")
    for words in (["init", "-q"], ["add", "."], [*AS_AUTHOR, "commit", "-qm", "Tell the time"]):
        subprocess.run(["git", *words], cwd=work, check=True)
    work.chmod(0o777)
    return work


def call_tool(name: str, turn: int, command: str) -> ToolCall:
    program = ALL[name]
    key = "cmd" if "cmd" in program.arguments else "command"
    return ToolCall(f"call_{turn}", program.tool, {**program.arguments, key: command})


@define
class Model:
    """Has a program run ``command`` in each turn, and then end; counts how often it was asked at each.

    A turn's number is that of the model's calls before it. What is asked beside the task, as for a title, is no turn.
    """

    name: str
    command: str
    turns: int = TURNS
    asked: Counter[int] = field(factory=Counter)

    def __call__(self, question: Question) -> Script:
        program = ALL[self.name]
        if not any(each.name == program.tool for each in question.tools):
            return Says([Text("A title")])
        turn = sum(bool(message.calls) for message in question.messages)
        self.asked[turn] += 1
        if turn < self.turns:
            return Says([Called(call_tool(self.name, turn, self.command.format(turn)))], "tool_calls")
        if program.end:
            return Says([Called(ToolCall(f"call_{turn}", program.tool, program.end))], "tool_calls")
        return Says([Text("Done.")])


def list_turns(path: Path, tool: str) -> list[RecordedCall]:
    """The questions of a recording in which that tool was offered."""
    calls = sorted(read_recording(path).calls(), key=lambda call: call.begin)
    return [call for call in calls if any(each["name"] == tool for each in call.request.get("tools") or ())]


def give_answer(client: AgentOSClient, question: RecordedCall, call: ToolCall) -> tuple[dict[str, Any], list[str]]:
    """Fork the life at a question with this call as its answer; what came of it, and what its file ``done`` has."""
    made = {"id": call.id, "name": call.name, "arguments": call.arguments}
    edits = {str(question.begin): {"content": "", "tool_calls": [made], "finish_reason": "tool_calls"}}
    begun = client.replay_start(path="coder-1", until=question.begin + 1, then="live", edits=edits, hold=True)
    name = up(begun)["name"]
    found = dict(wait_replay(client, name))
    done = up(client.exec("cat done", name=name))["stdout"].split()
    client.replay_stop(name)
    client.kill(name=name, grace=0)
    return found, done


@pytest.mark.usefixtures("framework", "kernels")
@pytest.mark.parametrize("name", NAMES)
def test_a_program_of_others_goes_on_from_each_question_with_another_answer(entered: Path, name: str) -> None:
    toml = LLM + describe(name) + FORKED
    with vendor() as met:
        met.models["scripted"] = Model(name, "echo {} >> done")
        toml = toml.format(url=met.base_url, work=make_project(entered))
        with running(toml, {"OPENAI_API_KEY": met.key}) as kernel, kernel.client() as client:
            path = kernel.state_dir / "recordings" / "coder-1.recording"
            until(
                lambda: info(client, "coder")["state"] == "exited", "it has ended", LONG, lambda: lines(client, "coder")
            )
            until(lambda: read_recording(path).manifest.ended, "it is recorded", show=lambda: lines(client, "coder"))
            questions = list_turns(path, ALL[name].tool)
            assert len(questions) == TURNS + 1, lines(client, "coder")
            for turn in CHOSEN:
                model = met.models["scripted"] = Model(name, "", turns=0)
                found, done = give_answer(client, questions[turn], call_tool(name, turn, "echo edited >> done"))

                assert found["verdict"] in ("identical", "drifted"), (turn, found)
                assert {one["kind"] for one in found["drift"]} <= {"tool output", "time"}, "Codex numbers what it runs"
                assert done == [*map(str, range(turn)), "edited"]
                assert model.asked == {turn + 1: 1}, "only what follows the answer is asked"


def list_recordings(kernel: Kernel) -> list[Path]:
    """The recordings of the agent's lives, the latest last."""
    found = (kernel.state_dir / "recordings").glob("coder-*.recording")
    return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))


def is_answered(kernel: Kernel, name: str, turn: int) -> bool:
    """Whether the answer at a turn is on the disk: that of a killed kernel's last 50 ms isn't."""
    questions = list_turns(list_recordings(kernel)[-1], ALL[name].tool)
    return sum(call.reply is not None for call in questions) > turn


@pytest.mark.usefixtures("framework", "kernels")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("killed", ["program", "kernel"])
def test_a_program_of_others_goes_on_after_a_crash_at_each_turn(entered: Path, name: str, killed: str) -> None:
    work, command = make_project(entered), "touch at-{0}; until [ -e go-{0} ]; do sleep 0.05; done; echo {0}"
    toml = LLM + describe(name) + RESUMED
    with vendor() as met:
        model = met.models["scripted"] = Model(name, command)
        toml = toml.format(url=met.base_url, work=work)
        with running(toml, {"OPENAI_API_KEY": met.key}) as kernel:

            def show() -> object:
                with kernel.client() as client:
                    return client.logs("coder", tail=60)

            for turn in range(TURNS):
                until((work / f"at-{turn}").exists, f"it is at turn {turn}", seconds=LONG, show=show)
                if turn in CHOSEN and killed == "kernel":
                    until(partial(is_answered, kernel, name, turn), f"the answer at turn {turn} is recorded", show=show)
                    kernel.kill()
                    kernel.start_again()
                elif turn in CHOSEN:
                    with kernel.client() as client:
                        os.kill(pid := known(client, "coder"), signal.SIGKILL)
                    # Until it is reaped, other processes of its jail go on.
                    until(lambda: not Path(f"/proc/{pid}").exists(), "it is dead", show=show)
                (work / f"go-{turn}").touch()
            until(lambda: model.asked[TURNS], "it is asked for the end", seconds=LONG, show=show)
            with kernel.client() as client:
                until(lambda: info(client, "coder")["state"] == "exited", "it is over", show=show)
                notes = lines(client, "coder", "kernel")
            lives = [read_recording(path).manifest.lives[0] for path in list_recordings(kernel)]

    assert model.asked == dict.fromkeys(range(TURNS + 1), 1), "\n".join(notes)
    assert [bool(life.resumed) for life in lives] == [False, *(True for _ in CHOSEN)], "\n".join(notes)
