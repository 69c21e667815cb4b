"""A recording of a tree of agents: what is recorded of it, and each of its lives lived again alone."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentos.recordings.reader import read_recording
from agentos_sdk.testing.replays import run_replay
from tests.llm.vendors.script import Says, Text
from tests.llm.vendors.server import Vendor
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, running, until
from tests.support.runs.enter import let_in
from tests.support.servers.vendor import vendor
from tests.system.agents import have_ended, up

TOML = """
[llm]
provider = "openai"
model = "wise"
base_url = "{url}"

[[agents]]
name = "chief"
script = "{code}/chief.py"
code = "{code}"
restart = "temporary"
start = "on_message"
permissions = "unrestricted"

[[agents]]
name = "helper"
script = "{code}/helper.py"
code = "{code}"
restart = "temporary"
start = "on_message"
permissions = "unrestricted"
"""
CHIEF = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.recv_messages(1, timeout=300)
    plan = me.think("What is to be done?")["content"]
    child = me.spawn("child", script="/agent/child.py")
    assert child["success"], child
    for name in ("helper", "child"):
        assert me.send_message({"plan": plan, "to": me.hello()["agent_id"]}, to_name=name)["success"]
    letters = []
    while len(letters) < 2:
        letters += me.recv_messages(2, timeout=300)["messages"]
    me.wait("child", timeout=300)
    me.store("said", sorted(letter["message"] for letter in letters))
    print(hash("the same in a replay"), sorted(letter["message"] for letter in letters), child["id"], flush=True)
"""
WORKER = """
import sys
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    [letter] = me.recv_messages(1, timeout=300)["messages"]
    said = me.think("{name} is told to " + letter["message"]["plan"])["content"]
    me.send_message("{name}: " + said, to=letter["message"]["to"])
"""


class Tree:
    """A kernel that has recorded three agents; its vendor is down, and its log is what it was asked then."""

    def __init__(self, kernel: Kernel, log: Vendor, code: Path) -> None:
        self.kernel, self.log, self.code = kernel, log, code
        self.asked = len(log.exchanges)
        self.name = "recording-1"

    def replay(self, *options: str) -> tuple[int, str]:
        words = ["replay", self.name, *options, "--socket", self.kernel.socket]
        done = run_agentos(words, self.kernel.place, environment(self.kernel.place))
        return done.returncode, done.stdout

    def change(self, place: Path, name: str, old: str, new: str) -> str:
        """A directory with all programs, in one of which these words are others."""
        place.chmod(0o755)
        for file in self.code.glob("*.py"):
            text = file.read_text()
            assert file.stem != name or old in text
            (place / file.name).write_text(text.replace(old, new) if file.stem == name else text)
        return str(place)


@pytest.fixture(scope="module")
def tree(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    code = tmp_path_factory.mktemp("code")
    let_in(code, tmp_path_factory.getbasetemp())
    (code / "chief.py").write_text(CHIEF)
    for name in ("helper", "child"):
        (code / f"{name}.py").write_text(WORKER.replace("{name}", name))
    with vendor() as met:
        met.models = {"wise": Says([Text("sweep the floor")])}
        started = running(TOML.format(url=met.base_url, code=code), {"OPENAI_API_KEY": met.key})
        kernel = started.__enter__()
        try:
            record = ["record", "chief", "helper", "--tree", "--socket", kernel.socket]
            assert run_agentos(record, kernel.place, environment(kernel.place)).returncode == 0
            path = kernel.state_dir / "recordings" / "recording-1.recording"
            with kernel.client() as client:
                up(client.send_message("begin", to_name="chief"))
                until(partial(have_ended, path, 3), "three lives are recorded", show=lambda: kernel.said)
                assert up(client.record_stop())["name"] == "recording-1"
        except BaseException:
            started.__exit__(None, None, None)
            raise
    try:
        yield Tree(kernel, met, code)
    finally:
        started.__exit__(None, None, None)


def by_life(found: dict[str, Any], key: str) -> dict[str, Any]:
    return {one["life"]: one[key] for one in found["lives"]}


def test_what_an_agent_spawned_is_recorded_with_it_from_its_first_call(tree: Tree) -> None:
    lives = read_recording(tree.kernel.state_dir / "recordings" / "recording-1.recording").manifest.lives

    assert {life.life for life in lives} == {"chief/1", "helper/1", "child/1"}
    assert {(life.replayable, life.exit) for life in lives} == {(True, "exit status 0")}


def test_each_life_of_a_tree_is_replayed_alone_and_nothing_leaves_it(tree: Tree) -> None:
    with tree.kernel.client() as client:
        before = [up(client.mail(name))["count"] for name in ("chief", "helper")], client.fetch("said")["version"]
        status, said = tree.replay("--json")
        after = [up(client.mail(name))["count"] for name in ("chief", "helper")], client.fetch("said")["version"]
        printed = [
            [line["text"] for line in client.logs(name)["lines"] if line["stream"] == "stdout"]
            for name in ("chief", "chief-replay")
        ]
        child = up(client.inspect("child"))["id"]

    found = json.loads(said)
    assert (status, found["verdict"]) == (0, "identical"), said
    assert by_life(found, "verdict") == dict.fromkeys(("chief/1", "helper/1", "child/1"), "identical")
    assert sum(by_life(found, "total_entries").values()) == found["total_entries"]
    assert printed[0] == printed[1], "the program was told the recorded id of the child that isn't started"
    assert printed[0][-1].split()[-1] == str(child), "none was spawned since"
    assert before == after
    assert len(tree.log.exchanges) == tree.asked


@pytest.mark.parametrize("name", ["chief", "child"])
def test_of_changed_code_the_life_is_found_that_differs(tree: Tree, tmp_path: Path, name: str) -> None:
    old, new = ('"What is', '"What was') if name == "chief" else ("is told to", "is asked to")
    status, said = tree.replay("--code", tree.change(tmp_path, name, old, new))

    first, *lines = said.splitlines()
    heads = {line.split(": ")[0]: line.split(": ")[1] for line in lines if not line.startswith(" ")}
    verdicts = {f"{one}/1": "diverged" if one == name else "identical" for one in ("chief", "helper", "child")}
    assert (status, first.split(":")[0], heads) == (1, "diverged", verdicts), said
    assert f"  {name}/1, call 2, THINK: no recorded call is equal" in lines


def test_one_life_of_a_tree_can_be_named(tree: Tree) -> None:
    status, said = tree.replay("child/1", "--json")

    found = json.loads(said)
    assert (status, found["verdict"], found["lives"]) == (0, "identical", [])


def test_a_life_whose_program_is_not_found_says_why_and_the_others_are_replayed(tree: Tree) -> None:
    path = tree.kernel.state_dir / "recordings" / "recording-1.recording"
    bare = TOML.split("\n[[agents]]")[0].format(url="http://127.0.0.1:9")
    with running(bare, {"OPENAI_API_KEY": "none"}) as other, other.client() as client:
        found = run_replay(client, str(path))

    assert found["verdict"] == "can't"
    assert all("its program can't be found" in error for error in by_life(dict(found), "error").values())
    assert len(found["lives"]) == 3


def test_a_tree_that_is_replayed_can_be_stopped(tree: Tree, tmp_path: Path) -> None:
    code = tree.change(tmp_path, "helper", "import sys", "import time; time.sleep(1000)")
    with tree.kernel.client() as client:
        name = up(client.replay_start(path="recording-1", code=code))["name"]
        others = ("chief/1", "child/1")
        until(
            lambda: {by_life(client.replay_status(name), "verdict")[life] for life in others} == {"identical"},
            "the other lives were lived again",
        )
        up(client.replay_stop(name))

        assert not [one for one in client.list_agents() if "-replay" in one["name"] and one["state"] == "running"]
        assert client.replay_status(name)["code"] == "not_found"
