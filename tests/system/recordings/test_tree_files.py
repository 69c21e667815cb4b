"""A tree of agents with files and registered names, forked at each question of one of them, and checked there."""

import json
import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, running, until
from tests.support.runs.enter import let_in
from tests.system.agents import have_ended, up

NAMES = ("chief", "helper", "child")
QUESTIONS = 3
TOML = """
[llm]
provider = "offline"

[llm.prices."offline"]
input = 1.0
output = 4.0

[[agents]]
name = "chief"
script = "{code}/chief.py"
code = "{code}"
restart = "temporary"
start = "on_message"
permissions = "unrestricted"
workspace = {{ path = "{project}", mode = "overlay" }}

[[agents]]
name = "helper"
script = "{code}/worker.py"
code = "{code}"
args = ["hands"]
restart = "temporary"
start = "on_message"
permissions = "unrestricted"
"""
LOOK = """
import json, pathlib, sys
from agentos_sdk import AgentOSClient

def look():
    return {str(path): path.read_text() for path in sorted(pathlib.Path(".").rglob("*")) if path.is_file()}
"""
# Files are changed by commands, by WRITE, and by programs themselves; letters go to names that were registered.
CHIEF = f"""{LOOK}
with AgentOSClient() as me:
    me.recv_messages(1, timeout=300)
    assert me.register_name("boss")["success"]
    assert me.spawn("child", script="/agent/worker.py", args=["kid"], permissions="unrestricted")["success"]
    assert me.send_message("begin", to_name="helper")["success"]
    ready = [me.recv_messages(1, timeout=300)["messages"][0]["from_name"] for _ in range(2)]
    assert sorted(ready) == ["hands", "kid"], ready
    seen = []
    for turn in range({QUESTIONS}):
        me.exec(f"rm -f a.txt; echo {{turn}} >> made; mkdir -p sub; date +%s%N > sub/when{{turn}}")
        me.write_file("written", f"in turn {{turn}}")
        pathlib.Path("own").write_text(f"own {{turn}}")
        seen.append([look(), me.think(f"turn {{turn}}")["content"]])
        for name in ready:
            assert me.send_message({{"do": turn}}, to_name=name)["success"], name
        letters = [me.recv_messages(1, timeout=300)["messages"][0] for _ in ready]
        seen += sorted([letter["from_name"], letter["message"]] for letter in letters)
    for name in ready:
        me.send_message({{"do": "end"}}, to_name=name)
    me.wait("child", timeout=300)
    print(json.dumps(seen), flush=True)
"""
WORKER = f"""{LOOK}
with AgentOSClient() as me:
    if sys.argv[1] == "hands":
        me.recv_messages(1, timeout=300)
    assert me.register_name(sys.argv[1])["success"]
    assert me.send_message("ready", to_name="boss")["success"]
    while (do := me.recv_messages(1, timeout=300)["messages"][0]["message"]["do"]) != "end":
        me.exec(f"echo {{do}} >> done; date +%s%N > when{{do}}")
        assert me.send_message(sorted(look()), to_name="boss")["success"]
    print(json.dumps(look()), flush=True)
"""


class Tree:
    """A kernel that has recorded the three agents, and what each had printed."""

    def __init__(self, kernel: Kernel, project: Path) -> None:
        self.kernel, self.project = kernel, project
        with kernel.client() as client:
            self.printed = {name: printed(client, name) for name in NAMES}

    def fork(self, number: int, *options: str) -> tuple[int, str, str]:
        words = ["fork", f"recording-1@{number}", "--tree", "--yes", *options, "--socket", self.kernel.socket]
        env = {**environment(self.kernel.place), "AGENTOS_STATE_DIR": str(self.kernel.state_dir)}
        done = run_agentos(words, self.kernel.place, env)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def tree(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    code = tmp_path_factory.mktemp("code")
    let_in(code, tmp_path_factory.getbasetemp())
    (code / "chief.py").write_text(CHIEF)
    (code / "worker.py").write_text(WORKER)
    with tempfile.TemporaryDirectory(prefix="aos-work-", dir="/tmp") as place:
        project = Path(place) / "project"
        project.mkdir()
        (project / "a.txt").write_text("of the host")
        for path in (Path(place), project):
            path.chmod(0o777)
        with running(TOML.format(code=code, project=project)) as kernel:
            path = kernel.state_dir / "recordings" / "recording-1.recording"
            record = ["record", "chief", "helper", "--tree", "--socket", kernel.socket]
            assert run_agentos(record, kernel.place, environment(kernel.place)).returncode == 0
            with kernel.client() as client:
                up(client.send_message("begin", to_name="chief"))
                until(partial(have_ended, path, len(NAMES)), "three lives are recorded", show=lambda: kernel.said)
                up(client.record_stop())
            yield Tree(kernel, project)


def printed(client: AgentOSClient, name: str) -> Any:
    """What an agent has printed last."""
    return json.loads([one["text"] for one in client.logs(name)["lines"] if one["stream"] == "stdout"][-1])


def without_live_times(value: Any, turn: int) -> Any:
    """What was seen, but for the times that were written from this turn on."""
    if isinstance(value, list):
        return [without_live_times(one, turn) for one in value]
    if isinstance(value, dict):
        late = {path for path in value if path[-1].isdecimal() and int(path[-1]) >= turn}
        return {path: "" if path in late else text for path, text in value.items()}
    return value


@pytest.mark.parametrize("number", [1, QUESTIONS])
def test_members_have_the_files_and_names_of_the_moment(tree: Tree, number: int) -> None:
    status, said, wrong = tree.fork(number, "--json")

    assert status == 0, said + wrong
    (fork,) = json.loads(said)["forks"]
    assert (fork["verdict"], [one["drift"] for one in fork["lives"]]) == ("identical", [[], [], []])
    with tree.kernel.client() as client:
        for one in fork["lives"]:
            name, turn = one["life"].partition("/")[0], number if one["life"] == "chief/1" else number - 1
            seen = [without_live_times(each, turn) for each in (printed(client, one["agent"]), tree.printed[name])]
            assert seen[0] == seen[1], (name, fork)
            assert fork["members"][one["life"]]["end"] == "exit status 0"
    assert [path.name for path in tree.project.iterdir()] == ["a.txt"]


def test_a_check_judges_each_fork_in_the_files_of_the_agent_that_was_asked(tree: Tree) -> None:
    check = "touch checked; test ! -e a.txt && grep -q 2 made && test -s sub/when2 && cat own"
    good = tree.fork(2, "--say", "another answer", "--check", check)
    bad = tree.fork(2, "--check", "echo no; exit 3")
    row, last, former = (
        re.split("  +", find_row(table, life))
        for table, life in ((good[1], "chief-fork"), (bad[1], "chief-fork"), (bad[1], "(recorded)"))
    )
    with tree.kernel.client() as client:
        changed = {one["path"] for one in up(client.diff(row[0]))["changes"]}
        living = [one["name"] for one in client.list_agents()]

    assert good[0] == 0, good
    assert row[1:3] == ["chief/1", "passed"]
    assert [float(use) for use in former[3:5]] == [float(use) for use in last[3:5]]
    assert 0 < float(row[3]) < float(last[3]), "an answer of one's own costs nothing"
    assert 0 < int(row[4]) < int(last[4])
    assert (row[5] in ("-", "no"), last[5]) == (False, "no")
    assert changed == {"a.txt", "made", "own", "written", "sub", *(f"sub/when{turn}" for turn in range(QUESTIONS))}
    assert (bad[0], bad[1].count("exit 3"), f"{last[0]}: no\n" in bad[1]) == (1, 1, True), bad
    assert not [name for name in living if "-fork" in name]


def find_row(table: str, first: str) -> str:
    """The first row of a table that begins so."""
    return next(line for line in table.splitlines() if line.startswith(first))
