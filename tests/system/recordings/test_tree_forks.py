"""Three agents with messages under way, forked at numbers of their order: each message is taken once."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentos.recordings.format import Json
from agentos.recordings.reader import RecordedCall, read_recording
from agentos.recordings.replay.tree.cut import find_cut
from agentos_sdk import AgentOSClient
from agentos_sdk.testing.replays import run_replay
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, running, until
from tests.support.runs.enter import let_in
from tests.support.runs.rounds import is_night
from tests.system.agents import have_ended, up

ROUNDS = 4
PLACES = 20 if is_night() else 4
TOML = """
[llm]
provider = "offline"
openai_endpoint = true

[[agents]]
name = "spawner"
script = "{code}/spawner.py"
code = "{code}"
restart = "temporary"
start = "on_message"
permissions = "unrestricted"

[[agents]]
name = "chief"
script = "{code}/chief.py"
code = "{code}"
restart = "temporary"
start = "on_message"
permissions = "unrestricted"

[[agents]]
name = "helper"
script = "{code}/worker.py"
code = "{code}"
restart = "temporary"
start = "on_message"
permissions = "unrestricted"
"""
# Each message has a number of its own. The chief sends two at once, so that some wait, and answers come back by id.
CHIEF = f"""
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.recv_messages(1, timeout=300)
    child = me.spawn("child", script="/agent/worker.py")
    assert child["success"], child
    me.store("round", 0, scope="agent")
    me.think("what now?")
    got, own = [], me.hello()["agent_id"]
    for turn in range({ROUNDS}):
        assert me.send_message({{"n": f"helper {{turn}}", "to": own}}, to_name="helper")["success"]
        assert me.send_message({{"n": f"child {{turn}}", "to": own}}, to=child["id"])["delivered_to"] == child["id"]
        assert me.fetch("round", scope="agent")["value"] == turn
        me.store("round", turn + 1, scope="agent")
        if turn % 2:
            while len(got) < 2 * turn + 2:
                for one in me.recv_messages(2, timeout=300)["messages"]:
                    assert one["from_name"] in ("helper", "child"), one
                    assert (one["from_id"] == child["id"]) == (one["from_name"] == "child"), one
                    got.append(one["message"]["n"])
    for to in ({{"to_name": "helper"}}, {{"to": child["id"]}}):
        me.send_message({{"n": "end"}}, **to)
    me.wait("child", timeout=300)
    print("chief", got, flush=True)
"""
WORKER = """
from agentos_sdk import AgentOSClient

got = []
with AgentOSClient() as me:
    own = me.hello()["name"]
    while not got or got[-1] != "end":
        for one in me.recv_messages(1, timeout=300)["messages"]:
            got.append(one["message"]["n"])
            if "to" in one["message"]:
                me.send_message({"n": "answer to " + got[-1]}, to=one["message"]["to"])
print(own, got, flush=True)
"""
SPAWNER = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.recv_messages(1, timeout=300)
    assert me.spawn("asker", script="/agent/asker.py", ready="hello")["success"]
    me.wait("asker", timeout=300)
"""
# It asks its question while its SPAWN waits for its HELLO.
ASKER = """
import json, os, urllib.request
from agentos_sdk import AgentOSClient

question = json.dumps({"messages": [{"role": "user", "content": "what now?"}]}).encode()
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, question, headers)).read()
with AgentOSClient() as me:
    me.hello()
"""


class Tree:
    """A kernel that has recorded the three agents."""

    def __init__(self, kernel: Kernel, path: Path, code: Path, printed: dict[str, str]) -> None:
        self.kernel, self.path, self.code, self.printed = kernel, path, code, printed
        self.calls: list[RecordedCall] = sorted(read_recording(path).calls(), key=lambda call: call.begin)

    def agentos(self, *words: str) -> tuple[int, str, str]:
        env = {**environment(self.kernel.place), "AGENTOS_STATE_DIR": str(self.kernel.state_dir)}
        done = run_agentos([*words], self.kernel.place, env)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def tree(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    code = tmp_path_factory.mktemp("code")
    let_in(code, tmp_path_factory.getbasetemp())
    (code / "chief.py").write_text(CHIEF)
    (code / "worker.py").write_text(WORKER)
    (code / "spawner.py").write_text(SPAWNER)
    (code / "asker.py").write_text(ASKER)
    with running(TOML.format(code=code)) as kernel:
        path = kernel.state_dir / "recordings" / "recording-1.recording"
        record = ["record", "chief", "helper", "--tree", "--socket", kernel.socket]
        assert run_agentos(record, kernel.place, environment(kernel.place)).returncode == 0
        with kernel.client() as client:
            up(client.send_message("begin", to_name="chief"))
            until(partial(have_ended, path, 3), "three lives are recorded", show=lambda: kernel.said)
            up(client.record_stop())
            yield Tree(kernel, path, code, {name: last_line(client, name) for name in ("chief", "helper", "child")})


def last_line(client: AgentOSClient, name: str) -> str:
    lines = [str(line["text"]) for line in client.logs(name)["lines"] if line["stream"] == "stdout"]
    return lines[-1] if lines else ""


def list_taken(path: Path, life: str) -> Counter[str]:
    """How often each message was taken in a recording of one life."""
    calls = [call for call in read_recording(path).calls() if call.call == "RECV" and call.life == life]
    return Counter(
        str(one["message"]["n"])
        for call in calls
        for one in (call.reply or {})["messages"]
        if one["message"] != "begin"
    )


def fork(tree: Tree, number: int, **fields: Any) -> Json:
    with tree.kernel.client() as client:
        return dict(run_replay(client, "recording-1", until=number, then="live", **fields))


def choose_places(tree: Tree, count: int) -> list[int]:
    """The begin of the order, and numbers throughout it at which messages are under way."""
    numbers, manifest = range(1, tree.calls[-1].end), read_recording(tree.path).manifest
    busy = [one for one in numbers if any(each.waiting for each in find_cut(manifest, tree.calls, one).members)]
    return [1, *(busy[len(busy) * place // (count - 1)] for place in range(count - 1))]


@pytest.mark.parametrize("place", range(PLACES))
def test_each_message_is_taken_once_wherever_the_tree_is_forked(tree: Tree, place: int) -> None:
    number = choose_places(tree, PLACES)[place]  # at 1 the child is spawned live

    found = fork(tree, number)

    assert (found["state"], found["verdict"]) == ("COMPLETED", "identical"), (number, found)
    with tree.kernel.client() as client:
        for one in found["lives"]:
            name = one["life"].partition("/")[0]
            assert sorted(last_line(client, one["agent"])) == sorted(tree.printed[name]), (number, found)
            taken = list_taken(Path(one["recording"]), f"{one['agent']}/1")
            assert set(taken.values()) == {1}, (number, name, taken)
            assert taken == list_taken(tree.path, one["life"])
        assert {up(client.mail(name))["count"] for name in ("chief", "helper")} == {0}


def test_nothing_is_live_if_one_of_the_lives_does_not_come_to_the_cut(tree: Tree) -> None:
    last, code = tree.calls[-1].begin, tree.code / "worker.py"
    code.write_text(WORKER.replace("answer to", "reply to"))
    try:
        found = fork(tree, last)
    finally:
        code.write_text(WORKER)

    verdicts = {one["life"]: one["verdict"] for one in found["lives"]}
    assert found["verdict"] == "diverged", found
    assert "diverged" in (verdicts["helper/1"], verdicts["child/1"])
    assert not [note for one in found["lives"] for note in one["notes"] if note.startswith("live: ")]
    with tree.kernel.client() as client:
        assert not [one for one in client.list_agents() if "-fork" in one["name"] and one["state"] == "running"]


def test_the_command_forks_a_tree_at_a_question_that_show_numbers(tree: Tree) -> None:
    socket = "--socket", tree.kernel.socket
    _, shown, _ = tree.agentos("recordings", "show", "recording-1", "--life", "chief/1")
    status, said, wrong = tree.agentos("fork", "recording-1@1", "--tree", "--say", "go on", "--yes", *socket)

    rows = {row.split()[1]: row.split() for row in said.splitlines() if "-fork" in row.split(" ")[0]}
    assert "question 1, " in shown
    assert status == 0, said + wrong
    assert {life: row[2] for life, row in rows.items()}["chief/1"] == "identical"
    assert "  chief: " in said


def test_an_agent_that_is_new_in_a_fork_is_not_checked_in_place_of_that_which_had_asked(tree: Tree) -> None:
    with tree.kernel.client() as client:
        name = up(client.record_start(["spawner"], tree=True))["name"]
        up(client.send_message("begin", to_name="spawner"))
        path = tree.path.with_name(f"{name}.recording")
        until(partial(have_ended, path, 2), "both have ended", show=lambda: client.logs("spawner"))
        up(client.record_stop())
    options = "--tree", "--check", "true", "--yes", "--socket", tree.kernel.socket

    status, _, wrong = tree.agentos("fork", f"{name}@1", *options)

    assert (status, "asker/1 was being spawned then and is new here" in wrong) == (1, True), wrong
    with tree.kernel.client() as client:
        assert not [one for one in client.list_agents() if "-fork" in one["name"] and one["state"] == "running"]
    status, said, wrong = tree.agentos("fork", f"{name}@1", "--say", "go on", *options)
    assert status == 0, said + wrong


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"until": 10**6}, "until: the last call of the recording ends at"),
        ({"until": 2, "code": "/tmp"}, "code: expected only with agent"),
        ({"until": 2, "edits": {"1": {"content": "x"}}}, "only answers of THINK can be edited"),
        ({"until": 2, "edits": {"x": {"content": "x"}}}, "edits.x: the recording has no call with this number"),
    ],
)
def test_what_can_not_be_forked_says_why(tree: Tree, fields: Json, said: str) -> None:
    with tree.kernel.client() as client:
        refused = client.replay_start(path="recording-1", then="live", **fields)

    assert (refused["code"], said in refused["error"]) == ("bad_request", True), refused


@pytest.mark.parametrize("place", ["elsewhere", "beside own ones", "beside own ones, unmarked"])
def test_the_lives_of_a_recording_from_elsewhere_are_not_forked_together(
    tree: Tree, tmp_path: Path, place: str
) -> None:
    path = (tmp_path if place == "elsewhere" else tree.path.parent) / "unpacked-1.recording"
    shutil.copytree(tree.path, path)
    manifest = json.loads((path / "recording.json").read_text())
    marked = {} if "unmarked" in place else {"mark": manifest.pop("mark")}
    (path / "recording.json").write_text(json.dumps(manifest | marked | {"name": "unpacked-1"}))
    with tree.kernel.client() as client:
        refused = client.replay_start(path=str(path), then="live", until=2)

    shutil.rmtree(path)
    assert (refused["code"], "that this kernel has made" in refused["error"]) == ("bad_request", True), refused
