"""``agentos fork REC@N``: an SDK agent, the loop, and a program over the OpenAI endpoint, forked at each question."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentos.recordings.reader import RecordedCall, read_recording
from agentos_sdk import AgentOSClient
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, running, until
from tests.support.runs.enter import let_in
from tests.system.agents import RECORDED, in_state, up
from tests.system.loop_agents import done, rule

TOML = """
[llm]
provider = "offline"
model = "wise"
openai_endpoint = true

[llm.offline]
rules = "{code}/rules.toml"
"""
PROGRAMS = {
    "coder": """
from agentos_sdk import AgentOSClient

messages = []
with AgentOSClient() as me:
    for turn in range(3):
        messages.append({"role": "user", "content": f"turn {turn}"})
        messages.append({"role": "assistant", "content": me.think(messages=messages)["content"]})
open("said.txt", "w").write(messages[-1]["content"])
print(messages[-1]["content"], flush=True)
""",
    "client": """
import json, os, urllib.request

messages = []
for turn in range(3):
    messages.append({"role": "user", "content": f"turn {turn}"})
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    question = json.dumps({"model": "wise", "messages": messages}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, question, headers)) as response:
        messages.append(json.load(response)["choices"][0]["message"])
print(messages[-1]["content"], flush=True)
""",
    "sleeper": """
import time
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    if me.think("go on?")["content"] == "stay":
        print("it stays", flush=True)
        time.sleep(1000)
""",
    "looper": """
from agentic import run_task

print(run_task("count to two").summary, flush=True)
""",
}
RULES = [
    rule("turn", model="fast", reply="quick"),
    rule(r"turn (\d)", reply=r"said \1"),
    rule("1", ("exec", {"command": "echo 2"}), tool="exec"),
    rule("2", done("counted"), tool="exec"),
    rule("count to two", ("exec", {"command": "echo 1"})),
]
QUESTIONS = 3


class Recorded:
    """A kernel with a recorded life of each program."""

    def __init__(self, kernel: Kernel, place: Path) -> None:
        self.kernel, self.place = kernel, place

    def fork(self, moment: str, *options: str) -> "subprocess.CompletedProcess[str]":
        words = ["fork", moment, *options, "--socket", self.kernel.socket]
        env = {**environment(self.kernel.place), "AGENTOS_STATE_DIR": str(self.kernel.state_dir)}
        return run_agentos(words, self.kernel.place, env)

    def recording(self, name: str) -> Path:
        return self.kernel.state_dir / "recordings" / f"{name}-1.recording"


def questions(path: Path | str) -> list[RecordedCall]:
    return sorted((call for call in read_recording(path).calls() if call.call == "THINK"), key=lambda call: call.begin)


def answer_of(call: RecordedCall) -> tuple[str, list[dict[str, Any]]]:
    assert call.reply is not None
    return call.reply["content"], [{**one, "id": ""} for one in call.reply["tool_calls"]]


def has_ended(manifest: Path) -> bool:
    return json.loads(manifest.read_text()).get("ended") is not None


def has_said(client: AgentOSClient, name: str) -> bool:
    return any(line["text"] == "it stays" for line in client.logs(name).get("lines", ()))


@pytest.fixture(scope="module")
def recorded(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    code = tmp_path_factory.mktemp("code")
    let_in(code, tmp_path_factory.getbasetemp())
    for name, text in PROGRAMS.items():
        (code / f"{name}.py").write_text(text)
    (code / "rules.toml").write_text("\n".join(RULES))
    agents = "".join(RECORDED.format(name=name, code=code) for name in PROGRAMS)
    with running(TOML.format(code=code) + agents) as kernel:
        made = Recorded(kernel, code)
        with kernel.client() as client:
            for name in PROGRAMS:
                in_state(client, name, "exited")
                manifest = made.recording(name) / "recording.json"
                until(partial(has_ended, manifest), f"{name} is recorded")
        yield made


@pytest.mark.parametrize(
    ("name", "other", "reply"),
    [
        ("coder", "--edit", {"content": "edited"}),
        ("client", "--say", "edited"),
        ("looper", "--call", {"summary": "edited"}),
    ],
)
def test_each_program_goes_on_from_each_question_with_another_answer(
    recorded: Recorded, tmp_path: Path, name: str, other: str, reply: Any
) -> None:
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(reply))
    words = {"--edit": [str(file)], "--say": [reply], "--call": ["done", json.dumps(reply)]}[other]
    before = questions(recorded.recording(name))
    assert len(before) == QUESTIONS
    for number in range(1, QUESTIONS + 1):
        ran = recorded.fork(f"{recorded.recording(name)}@{number}", other, *words, "--yes", "--json")
        found = json.loads(ran.stdout)["forks"][0]
        after = questions(found["recording"])
        asked = [call.request for call in after]

        assert (ran.returncode, found["verdict"], found["end"]) == (0, "identical", "exit status 0"), found["why"]
        assert asked[:number] == [call.request for call in before[:number]]
        assert [*map(answer_of, after)][: number - 1] == [*map(answer_of, before)][: number - 1]
        assert "edited" in str(answer_of(after[number - 1]))
        assert "edited" in str(found["differences"])
        last = number == QUESTIONS or name == "looper"
        assert len(after) == (number if last else QUESTIONS)
        assert (found["tokens"] > 0) is not last
        with recorded.kernel.client() as client:
            lines = [line["text"] for line in client.logs(found["name"])["lines"] if line["stream"] == "stdout"]
        assert lines[-1] == ("edited" if last else "said 2")


def test_several_models_are_compared_in_one_table(recorded: Recorded) -> None:
    moment = f"{recorded.recording('coder')}@2"
    ran = recorded.fork(moment, "--model", "fast", "--model", "wise", "--times", "2", "--yes")
    rights, _, table = ran.stdout.partition("FORK ")
    rows = [re.split(r"  +", line) for line in table.splitlines()[1:6]]

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "level sandboxed" in rights
    assert [row[1] for row in rows] == ["wise", "fast", "fast", "wise", "wise"]
    assert {row[0] for row in rows[1:]} == {"coder-fork", *(f"coder-fork-{number}" for number in (2, 3, 4))}
    assert [row[2] for row in rows] == ["-", *["identical"] * 4]
    assert [row[5] for row in rows] == ["-", *["'said 1' → 'quick'"] * 2, *["no"] * 2]
    assert [row[6] for row in rows] == ["exit status 0"] * 5
    with recorded.kernel.client() as client:
        last = [client.logs(row[0])["lines"][-2]["text"] for row in rows[1:]]
    assert last == ["quick", "quick", "said 2", "said 2"]  # each live question was asked of that model


def test_each_fork_is_checked_in_its_own_files_of_which_the_check_is_no_part(recorded: Recorded) -> None:
    moment, check = f"{recorded.recording('coder')}@3", "touch checked; cat said.txt; grep -q good said.txt"
    good = recorded.fork(moment, "--say", "good", "--check", check, "--yes", "--json")
    bad = recorded.fork(moment, "--say", "bad", "--check", check, "--yes")
    fork = json.loads(good.stdout)["forks"][0]
    with recorded.kernel.client() as client:
        changed = [one["path"] for one in client.diff(fork["name"])["changes"]]
        refused = client.apply(fork["name"], client.diff(fork["name"])["digest"])
        living = [one["name"] for one in client.list_agents()]

    assert (good.returncode, fork["verdict"], fork["exit_code"]) == (0, "passed", 0), good.stderr
    assert (bad.returncode, "exit 1" in bad.stdout, "coder-fork-2: bad" in bad.stdout) == (1, True, True), bad.stdout
    assert changed == ["said.txt"]
    assert "worked on no directory" in refused["error"]
    assert living == []


def test_no_more_than_ten_run_at_once_and_each_has_a_name_of_its_own(recorded: Recorded) -> None:
    last = questions(recorded.recording("sleeper"))[-1].begin
    live: dict[str, Any] = {"path": str(recorded.recording("sleeper")), "until": last + 1, "then": "live"}
    live["edits"] = {str(last): {"content": "stay"}}
    with recorded.kernel.client() as client:
        begun = [client.replay_start(**live) for _ in range(11)]
        names = [reply["name"] for reply in begun[:10]]
        for name in names:
            until(partial(has_said, client, name), f"{name} stays")
        stopped = client.replay_stop(names[0])
        again = up(client.replay_start(**live))
        client.replay_stop()
        living = [one["name"] for one in client.list_agents()]

    assert len(set(names)) == 10
    assert (begun[10]["code"], "10 forks run" in begun[10]["error"]) == ("busy", True)
    assert (stopped["state"], again["name"], living) == ("IDLE", names[0], [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("@2",), "there is no terminal to ask on: say --yes"),
        (("@9", "--yes"), "has 3 questions, and no 9"),
        (("@2", "--say", "x", "--call", "done", "{}"), "choose one of them"),
        (("@2", "--call", "done", "x", "--yes"), "--call: ARGS"),
        (("@2", "--yes", "--count", "2"), "are of snapshots"),
        (("@2", "--edit", "/nowhere/a.json", "--yes"), "/nowhere/a.json: No such file"),
    ],
)
def test_what_can_not_be_forked_is_refused_and_nothing_begins(
    recorded: Recorded, options: tuple[str, ...], said: str
) -> None:
    with recorded.kernel.client() as client:
        before = len(client.list_agents(all=True))
        ran = recorded.fork(f"{recorded.recording('coder')}{options[0]}", *options[1:])

        assert ran.returncode != 0
        assert said in ran.stderr
        assert len(client.list_agents(all=True)) == before


def test_a_wrong_field_of_an_edited_answer_is_named_by_its_file(recorded: Recorded, tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_text('{"contents": "x"}')
    ran = recorded.fork(f"{recorded.recording('coder')}@2", "--edit", str(file), "--yes")

    assert (ran.returncode, f"{file}: contents: expected one of content, " in ran.stderr) == (1, True), ran.stderr
