"""A recorded life of three questions that goes on live at each of them, and with another answer."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from agentos.recordings.reader import RecordedCall, read_recording
from agentos_sdk.testing.replays import run_replay
from tests.llm.vendors.script import Says, Text, Until
from tests.llm.vendors.server import Vendor
from tests.support.kernel import Kernel, running, until
from tests.support.runs.enter import let_in
from tests.support.servers.vendor import vendor
from tests.system.agents import in_state, up

TOML = """
[llm]
provider = "openai"
model = "wise"
base_url = "{url}"

[[agents]]
name = "coder"
script = "{code}/coder.py"
restart = "temporary"
record = true
permissions = {{ level = "sandboxed", allow = {{ state_write = ["turn"] }} }}

[[agents]]
name = "reader"
script = "{code}/reader.py"
restart = "temporary"
start = "on_message"
permissions = {{ level = "sandboxed", allow = {{ state_write = ["piece"] }} }}

[[agents]]
name = "other"
command = ["true"]
restart = "temporary"
start = "on_message"
"""
CODER = """
import json
from agentos_sdk import AgentOSClient

said, messages = [], []
with AgentOSClient() as me:
    for turn in range(3):
        messages.append({"role": "user", "content": f"turn {turn}"})
        answer = me.think(messages=messages)["content"]
        me.store("turn", turn, scope="global")
        messages.append({"role": "assistant", "content": answer})
        said.append(answer)
print(json.dumps(said), flush=True)
"""
READER = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    with me.think_stream("read", model="slow") as said:
        for piece in said:
            me.store("piece", piece, scope="global")
    print(me.think("now")["content"], flush=True)
"""


class Recorded:
    """A kernel with a recorded life, and a vendor that says something else now."""

    def __init__(self, kernel: Kernel, met: Vendor) -> None:
        self.kernel, self.met = kernel, met
        self.path = kernel.state_dir / "recordings" / "coder-1.recording"

    def questions(self) -> list[RecordedCall]:
        return [call for call in read_recording(self.path).calls() if call.call == "THINK"]

    def fork(self, **fields: Any) -> tuple[dict[str, Any], list[str], list[list[str]], int]:
        """What REPLAY_STATUS said at its end, the answers it got, the questions asked, and how often it stored."""
        before = len(self.met.exchanges)
        with self.kernel.client() as client:
            version = up(client.store("begun", True))["version"]  # versions count the stores of all keys
            name = up(client.replay_start(path="coder-1", **fields))["name"]
            until(lambda: client.replay_status()["state"] != "RUNNING", "the fork has ended")
            lines = [one["text"] for one in client.logs(name)["lines"] if one["stream"] == "stdout"]
            stored = client.fetch("turn")["version"] - version
            asked = [[m.text for m in each.question.messages] for each in self.met.exchanges[before:]]
            return dict(client.replay_status()), json.loads(lines[-1]), asked, stored


@pytest.fixture(scope="module")
def recorded(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    code = tmp_path_factory.mktemp("code")
    let_in(code, tmp_path_factory.getbasetemp())
    (code / "coder.py").write_text(CODER)
    (code / "reader.py").write_text(READER)
    with vendor() as met:
        met.models = {"wise": Says([Text("then")])}
        with running(TOML.format(url=met.base_url, code=code), {"OPENAI_API_KEY": met.key}) as kernel:
            made = Recorded(kernel, met)
            with kernel.client() as client:
                in_state(client, "coder", "exited")
            manifest = made.path / "recording.json"
            until(partial(lambda path: json.loads(path.read_text()).get("ended"), manifest), "it is recorded")
            met.models = {"wise": Says([Text("now")])}
            yield made


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_comes_before_is_recorded_and_what_follows_is_live(recorded: Recorded, number: int) -> None:
    found, said, asked, stored = recorded.fork(until=recorded.questions()[number].begin, then="live")

    assert (found["state"], found["verdict"]) == ("COMPLETED", "identical"), found
    assert said == ["then"] * number + ["now"] * (3 - number)
    assert [len(messages) for messages in asked] == [2 * turn + 1 for turn in range(number, 3)]
    assert stored == 3 - number


def test_an_edited_answer_changes_what_follows_and_nothing_before(recorded: Recorded) -> None:
    second = recorded.questions()[1].begin
    found, said, asked, _ = recorded.fork(until=second + 1, then="live", edits={str(second): {"content": "edited"}})

    assert said == ["then", "edited", "now"], found
    assert asked == [["turn 0", "then", "turn 1", "edited", "turn 2"]]


def test_a_stream_that_is_open_at_the_cut_of_a_tree_and_was_read_comes_whole(recorded: Recorded) -> None:
    go_on = Until()
    recorded.met.models["slow"] = Says([Text("first"), go_on, Text("last")])
    with recorded.kernel.client() as client:
        name = up(client.record_start(["reader", "other"]))["name"]
        for agent in ("reader", "other"):
            up(client.send_message("begin", to_name=agent))
        until(lambda: client.fetch("piece").get("value") == "first", "it has stored what it read")
        recorded.met.release(go_on)
        path = recorded.path.with_name(f"{name}.recording")
        until((path / "recording.json").exists, "the recording has begun to be written")
        until(lambda: sum(life.ended is not None for life in read_recording(path).manifest.lives) == 2, "both ended")
        up(client.record_stop())
        calls = [*read_recording(path).calls()]
        [stream] = [call for call in calls if call.call == "THINK" and call.chunks]
        inside = next(call.end + 1 for call in calls if call.call == "STORE" and call.end < stream.end)

        found = run_replay(client, name, until=inside, then="live")

        assert (found["state"], found["verdict"]) == ("COMPLETED", "identical"), found
        [reader] = [one for one in found["lives"] if one["life"] == "reader/1"]
        assert [line["text"] for line in client.logs(reader["agent"])["lines"] if line["stream"] == "stdout"] == ["now"]
