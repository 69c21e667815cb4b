"""What a recorded life began with: kept by a snapshot, seen again by a replay, and gone with the recording."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentos.recordings.reader import read_recording
from agentos_sdk import AgentOSClient
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, running, until
from tests.support.runs.enter import let_in
from tests.system.agents import in_state, up

TOML = """
[[agents]]
name = "coder"
script = "{place}/coder.py"
restart = "temporary"
record = true
workspace = {{ path = "{place}/project", mode = "overlay" }}

[[agents]]
name = "moved"
script = "{place}/coder.py"
restart = "temporary"
record = true
workspace = {{ path = "{place}/moved", mode = "overlay" }}

[[agents]]
name = "direct"
script = "{place}/coder.py"
restart = "temporary"
record = true
workspace = "{place}/own"

[[agents]]
name = "bare"
script = "{place}/runner.py"
restart = "temporary"
record = true
permissions = {{ level = "sandboxed", allow = {{ send = ["runner", "bare"] }} }}

[[agents]]
name = "runner"
script = "{place}/runner.py"
restart = "temporary"
record = true
permissions = {{ level = "sandboxed", allow = {{ send = ["runner", "bare"] }} }}
workspace = {{ path = "{place}/project", mode = "overlay" }}
"""
CODER = """
import json, pathlib
from agentos_sdk import AgentOSClient

def look():
    return {path.name: path.read_text() for path in sorted(pathlib.Path(".").iterdir()) if path.is_file()}

with AgentOSClient() as me:
    began = look()
    lives = int(began.get("lives", "0")) + 1
    me.write_file("lives", str(lives))
    pathlib.Path("own").write_text(f"own {lives}")
    read = me.read_file("lives")["content"]
    print(json.dumps([began, read]), flush=True)
"""

RUNNER = """
import json, pathlib
from agentos_sdk import AgentOSClient

def look():
    found = {}
    for path in sorted(pathlib.Path(".").rglob("*")):
        shown = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else "-"
        found[str(path)] = [shown, 0 if path.is_symlink() else path.stat().st_mode]
    return found

with AgentOSClient() as me:
    name = me.hello()["name"]
    assert me.send_message({"sent": "first"}, to_name=name)["success"]
    seen = [look()]
    me.exec("mkdir -p sub; echo made > made; date +%s%N > when; rm -rf a.txt sub; mkdir sub; echo new > sub/new; "
            "ln -s made link; mkdir -p x/y; echo deep > x/y/z; chmod 700 x/y")
    seen.append(look())
    me.store("turn", "second", scope="agent")
    pathlib.Path("own").write_text("own")
    me.exec("rm own x/y/z; echo more >> made; mv sub other")
    seen.append(look())
    seen.append(me.fetch("turn", scope="agent")["value"])
    seen.append([one["message"] for one in me.recv_messages()["messages"]])
    me.store("turn", "end", scope="agent")
    print(json.dumps(seen), flush=True)
"""


class Recorded:
    """A kernel whose agents have recorded lives: two of the one with an overlay."""

    def __init__(self, kernel: Kernel, place: Path) -> None:
        self.kernel, self.place = kernel, place

    def path(self, name: str) -> Path:
        return self.kernel.state_dir / "recordings" / f"{name}.recording" / "recording.json"

    def life(self, name: str) -> dict[str, Any]:
        """The one life of a recording that has ended."""
        until(partial(has_ended, self.path(name)), f"{name} is recorded")
        (life,) = json.loads(self.path(name).read_text())["lives"]
        return dict(life)

    def replay(self, client: AgentOSClient, name: str, **fields: Any) -> tuple[dict[str, Any], Any]:
        """What REPLAY_STATUS said at the end, and what the agent printed last."""
        agent = up(client.replay_start(path=name, **fields))["name"]
        until(lambda: client.replay_status()["state"] != "RUNNING", "the replay has ended")
        return dict(client.replay_status()), printed(client, agent)


def has_ended(manifest: Path) -> bool:
    return manifest.exists() and json.loads(manifest.read_text()).get("ended") is not None


@pytest.fixture(scope="module")
def recorded(kernels: None) -> Iterator[Recorded]:
    with tempfile.TemporaryDirectory(prefix="aos-work-", dir="/tmp") as made:
        place = Path(made)
        let_in(place, place)
        for name in ("project", "moved", "own"):
            (place / name).mkdir()
            (place / name / "a.txt").write_text("of the host")
            (place / name).chmod(0o777)
            (place / name / "sub").mkdir(mode=0o777)
            (place / name / "sub" / "b.txt").write_text("of the host")
        (place / "coder.py").write_text(CODER)
        (place / "runner.py").write_text(RUNNER)
        with running(TOML.format(place=place)) as kernel:
            found = Recorded(kernel, place)
            with kernel.client() as client:
                for name in ("coder", "moved", "direct", "bare", "runner"):
                    in_state(client, name, "exited")
                up(client.start("coder"))
                found.life("coder-2")
                found.life("moved-1")
                found.life("direct-1")
                found.life("bare-1")
                found.life("runner-1")
            yield found


def test_each_life_begins_again_with_the_files_that_it_began_with(recorded: Recorded) -> None:
    with recorded.kernel.client() as client:
        first, seen_first = recorded.replay(client, "coder-1")
        second, seen_second = recorded.replay(client, "coder-2")
        changed = {one["path"] for one in up(client.diff("coder"))["changes"]}

    assert (first["verdict"], first["drift"], first["notes"]) == ("identical", [], []), first
    assert (second["verdict"], second["drift"], second["notes"]) == ("identical", [], []), second
    assert seen_first == [{"a.txt": "of the host"}, "1"]
    assert seen_second == [{"a.txt": "of the host", "lives": "1", "own": "own 1"}, "2"]
    assert changed == {"lives", "own"}
    assert not [*(recorded.kernel.state_dir / "layers").glob("coder-replay*")]


def test_a_directory_that_has_changed_since_is_named(recorded: Recorded) -> None:
    (recorded.place / "moved" / "later").write_text("later")
    with recorded.kernel.client() as client:
        found, seen = recorded.replay(client, "moved-1")

    assert found["verdict"] == "identical"
    assert "later" in seen[0]
    assert len(found["notes"]) == 1
    assert found["notes"][0].endswith("is seen as it is now: ., later")


def test_where_no_snapshot_can_be_taken_a_life_is_replayed_without_files_and_says_so(recorded: Recorded) -> None:
    with recorded.kernel.client() as client:
        found, seen = recorded.replay(client, "direct-1")
    shown = run_agentos(
        ["recordings", "show", "direct-1", "--state-dir", str(recorded.kernel.state_dir)],
        recorded.kernel.place,
        environment(recorded.kernel.place),
    )

    assert (found["verdict"], seen) == ("identical", [{}, "1"])
    assert len(found["notes"]) == 1
    assert "empty at the begin: its workspace is a directory" in found["notes"][0]
    assert "without its files: its workspace is a directory" in shown.stdout


def printed(client: AgentOSClient, name: str) -> Any:
    """What an agent has printed last."""
    return json.loads([one["text"] for one in client.logs(name)["lines"] if one["stream"] == "stdout"][-1])


@pytest.mark.parametrize("name", ["runner", "bare"])
def test_what_commands_have_changed_is_there_again_though_none_runs(recorded: Recorded, name: str) -> None:
    with recorded.kernel.client() as client:
        then = printed(client, name)
        found, now = recorded.replay(client, f"{name}-1")

    assert (found["verdict"], found["drift"]) == ("identical", []), found
    assert not any("EXEC" in note for note in found["notes"])
    assert now == then
    assert [files.get("made", [None])[0] for files in then[:3]] == [None, "made\n", "made\nmore\n"]
    assert ("a.txt" in then[0], "a.txt" in then[1]) == (name == "runner", False)
    assert recorded.life(f"{name}-1").get("lost") is None


@pytest.mark.parametrize("name", ["runner", "bare"])
def test_a_live_part_begins_with_files_keys_and_mail_as_they_were_there(recorded: Recorded, name: str) -> None:
    path = recorded.path(f"{name}-1").parent
    second = [call.begin for call in read_recording(path).calls() if call.call == "EXEC"][1]
    with recorded.kernel.client() as client:
        then = printed(client, name)
        found, now = recorded.replay(client, f"{name}-1", until=second, then="live")
        private = {agent: client.fetch("turn", agent=agent)["value"] for agent in ("runner", "runner-fork")}
        kept = read_recording(recorded.kernel.state_dir / "recordings" / str(found["recording"]).rpartition("/")[2])

    assert now == then, found
    assert then[3:] == ["second", [{"sent": "first"}]]
    assert private == {"runner": "end", "runner-fork": None}
    assert [call.files for call in kept.calls() if call.call == "EXEC"] == [
        call.files for call in read_recording(path).calls() if call.call == "EXEC"
    ]


@pytest.mark.parametrize("start", ["its id", "a label"])
def test_a_recording_from_elsewhere_begins_with_no_snapshot_of_this_kernel(recorded: Recorded, start: str) -> None:
    """It may name any agent's, with that one's files and keys."""
    others = recorded.life("runner-1")["start"]
    path = recorded.path("unpacked-1").parent
    shutil.copytree(recorded.path("coder-2").parent, path)
    manifest = json.loads((path / "recording.json").read_text())
    manifest["name"], manifest["lives"][0]["start"] = "unpacked-1", others if start == "its id" else "runner@labelled"
    (path / "recording.json").write_text(json.dumps(manifest))
    with recorded.kernel.client() as client:
        if start == "a label":
            up(client.snapshot("runner", "labelled"))
        notes = up(client.replay_start(path="unpacked-1"))["notes"]
        up(client.replay_stop())

    shutil.rmtree(path)
    assert [note for note in notes if "the recording is from elsewhere" in note] != [], notes


def test_files_of_a_recording_go_with_it(recorded: Recorded) -> None:
    kernel = recorded.kernel
    kept = kernel.state_dir / "snapshots"
    with kernel.client() as client:
        up(client.start("coder"))  # a life that no other test looks at
        number = recorded.life("coder-3")["start"].partition("@")[2]
        assert (kept / number / "record.json").exists()
        assert up(client.snapshots("coder"))["snapshots"] == []
        words = ["recordings", "rm", "coder-3", "--state-dir", str(kernel.state_dir)]
        assert run_agentos(words, kernel.place, environment(kernel.place)).returncode == 0
        up(client.start("coder"))

        until(lambda: not (kept / number).exists(), "its snapshot is removed")

    assert (kept / recorded.life("coder-2")["start"].partition("@")[2]).exists()
