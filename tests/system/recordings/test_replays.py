"""A recorded life that is lived again with its vendor down: what is answered, what is not done, and the verdicts."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentos.recordings.format import Life
from agentos.recordings.reader import read_recording
from agentos_sdk import AgentOSClient
from agentos_sdk.testing import assert_replays
from agentos_sdk.testing.replays import run_replay
from tests.llm.vendors.script import Says, Text
from tests.llm.vendors.server import Vendor
from tests.recordings.written import line, write_recording
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, running, until
from tests.support.runs.enter import let_in
from tests.support.servers.vendor import vendor
from tests.system.agents import in_state, up
from tests.system.agents import lines as list_lines
from tests.system.events.test_event_types import Watcher

TOML = """
[llm]
provider = "openai"
model = "wise"
base_url = "{url}"
openai_endpoint = true

[recording]
masks = ['ticket-\\d+']

[[agents]]
name = "partner"
command = ["sleep", "1000"]

[[agents]]
name = "client"
script = "{code}/client.py"
restart = "temporary"
record = true

[[agents]]
name = "waiter"
script = "{code}/waiter.py"
restart = "temporary"
record = true

[[agents]]
name = "leaver"
script = "{code}/leaver.py"
restart = "temporary"
record = true

[[agents]]
name = "coder"
script = "{code}/coder.py"
restart = "temporary"
network = "filtered"
record = true
permissions = {{ level = "sandboxed", allow = {{ send = ["partner"], state_write = ["seen"] }} }}
"""
CODER = """
import json, sys, urllib.request
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    who = me.hello()
    first = me.think("What is to be done in /srv?")
    me.write_file("notes.txt", first["content"])
    ran = me.exec("date +%s%N; echo from the command ticket-1")
    me.store("seen", first["content"])
    up = me.send_message({"text": first["content"]}, to_name="partner")
    asked = [("user", "What is to be done in /srv?"), ("assistant", first["content"]), ("user", ran["stdout"])]
    second = me.think(messages=[{"role": role, "content": text} for role, text in asked])
    read = me.read_file("notes.txt")
    try:
        urllib.request.urlopen("http://example.com/")
    except OSError:
        print("refused")
    print(json.dumps([who["agent_id"], who["name"], second["content"], read["content"], up["success"]]), flush=True)
"""


CLIENT = """
import json, os, urllib.request

for stream in (False, True):
    question = {"model": "wise", "messages": [{"role": "user", "content": "by HTTP?"}], "stream": stream}
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(question).encode(), headers)
    with urllib.request.urlopen(request) as response:
        print(response.status, b"sweep" in response.read(), flush=True)
raise SystemExit(3)
"""
WAITER = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.think("What am I waiting for?")
    me.exec("touch begun; exec sleep 1000", timeout=1000)
"""
LEAVER = """
import os, signal, socket
from agentos_sdk import AgentOSClient

for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
    with socket.socket(family) as sock:
        assert sock.connect_ex((address, 80))
with AgentOSClient() as me:
    with me.exec_stream("echo begun; exec sleep 1000", timeout=1000) as output:
        print(next(iter(output))["text"], end="", flush=True)
    print(me.think("What was withdrawn?")["content"], flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
"""


class Recorded:
    """A kernel whose agent has a recorded life. Its vendor is down, and its log is what it was asked then."""

    def __init__(self, kernel: Kernel, log: Vendor, code: Path) -> None:
        self.kernel, self.log, self.code = kernel, log, code
        self.asked = len(log.exchanges)

    def replay(self, *options: str, recording: str = "coder-1") -> subprocess.CompletedProcess[str]:
        words = ["replay", recording, *options, "--socket", self.kernel.socket]
        return run_agentos(words, self.kernel.place, environment(self.kernel.place))

    def change(self, place: Path, *words: tuple[str, str]) -> str:
        """A directory with the agent's program, in which these words are others."""
        text = CODER
        for old, new in words:
            assert old in text
            text = text.replace(old, new)
        place.chmod(0o755)
        (place / "coder.py").write_text(text)
        return str(place)


def has_ended(manifest: Path) -> bool:
    return json.loads(manifest.read_text()).get("ended") is not None


@pytest.fixture(scope="module")
def recorded(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    code = tmp_path_factory.mktemp("code")
    let_in(code, tmp_path_factory.getbasetemp())
    for name, text in (("coder", CODER), ("client", CLIENT), ("leaver", LEAVER), ("waiter", WAITER)):
        (code / f"{name}.py").write_text(text)
    with vendor() as met:
        met.models = {"wise": Says([Text("sweep the floor")])}
        started = running(TOML.format(url=met.base_url, code=code), {"OPENAI_API_KEY": met.key})
        kernel = started.__enter__()
        try:
            with kernel.client() as client:
                for name in ("coder", "client", "leaver"):
                    in_state(client, name, "exited")
                looks = partial(client.exec, "test -e begun", name="waiter")
                until(lambda: looks().get("exit_code") == 0, "the waiter's command runs", show=lambda: kernel.said)
                up(client.stop("waiter"))
                for name in ("coder", "client", "leaver", "waiter"):
                    recording = kernel.state_dir / "recordings" / f"{name}-1.recording" / "recording.json"
                    until(partial(has_ended, recording), f"{name} is recorded")
        except BaseException:
            started.__exit__(None, None, None)
            raise
    try:
        yield Recorded(kernel, met, code)
    finally:
        started.__exit__(None, None, None)


def effects(client: AgentOSClient) -> list[int]:
    """Messages in the partner's mailbox, the version of what was stored, and tokens that were used."""
    tokens = sum(row["tokens"] for row in up(client.usage())["usage"])
    return [up(client.mail("partner"))["count"], client.fetch("seen")["version"], tokens]


def test_a_replay_is_sealed_and_identical_with_the_vendor_down(recorded: Recorded) -> None:
    with recorded.kernel.client() as client:
        before = effects(client)
        said = recorded.replay("--json")
        after = effects(client)
        lines = [line["text"] for line in client.logs("coder")["lines"] if line["stream"] == "stdout"]
        again = [line["text"] for line in client.logs("coder-replay")["lines"] if line["stream"] == "stdout"]

    found: dict[str, Any] = json.loads(said.stdout)
    assert (said.returncode, found["verdict"], found["drift"]) == (0, "identical", [])
    assert found["entries_replayed"] + found["entries_skipped"] == found["total_entries"]
    assert found["sealed"] == 1
    assert again == lines
    assert json.loads(again[-1])[1:] == ["coder", "sweep the floor", "sweep the floor", True]
    assert before == after == [1, 1, before[2]]
    assert len(recorded.log.exchanges) == recorded.asked


@pytest.mark.parametrize(
    ("words", "verdict", "said"),  # {none}: that no recorded call is equal
    [
        (("is to be", "was to be"), "diverged", "1, THINK: {none}\nmessage 1 (user): recorded 'is', now 'was'"),
        (("from the command", "from another"), "diverged", "3, EXEC: {none}\ncommand: "),
        (('"seen"', '"saw"'), "diverged", "4, STORE: {none}\nkey: recorded 'seen', now 'saw'"),
        (("me.store", "me.store('denied', 1); me.store"), "diverged", "4, STORE: {none}\nkey: "),
        (("    try:\n", "    me.think('one more?')\n    try:\n"), "exhausted", "8, THINK: "),
        (("    read = ", "    sys.exit(0)\n    read = "), "unfinished", "coder/1 ended, and these "),
    ],
)
def test_changed_code_is_found_at_its_call(
    recorded: Recorded, tmp_path: Path, words: tuple[str, str], verdict: str, said: str
) -> None:
    with recorded.kernel.connect() as wire:
        watcher = Watcher(wire)
        done = recorded.replay("--code", recorded.change(tmp_path, words), "--json")
        watcher.wait("REPLAY_DIVERGED", name="coder-replay", life="coder/1", verdict=verdict)

    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (1, verdict)
    place = said.format(none="no recorded call is equal")
    assert found["divergence"].removeprefix("coder/1, call ").startswith(place)
    assert len(recorded.log.exchanges) == recorded.asked


def test_a_test_asserts_that_a_life_replays(recorded: Recorded, tmp_path: Path) -> None:
    directory = recorded.kernel.state_dir / "recordings" / "coder-1.recording"
    changed = recorded.change(tmp_path, ("is to be", "was to be"))

    assert assert_replays(recorded.kernel, directory)["verdict"] == "identical"
    with pytest.raises(AssertionError, match=r"diverged\ncoder/1, call 1, THINK: .*\n.*'is', now 'was'"):
        assert_replays(recorded.kernel, directory, code=changed)
    with pytest.raises(AssertionError, match="has no life of 'nobody'"):
        assert_replays(recorded.kernel, directory, agent="nobody")


def test_a_program_that_asks_by_the_endpoint_gets_whole_and_streamed_answers(recorded: Recorded) -> None:
    done = recorded.replay(recording="client-1")
    with recorded.kernel.client() as client:
        lines = [line["text"] for line in client.logs("client-replay")["lines"] if line["stream"] == "stdout"]

    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "identical: 2 of 2 calls")
    assert lines == ["200 True", "200 True"]
    assert len(recorded.log.exchanges) == recorded.asked


def test_a_life_that_was_ended_while_it_waited_is_replayed_to_that_point(recorded: Recorded) -> None:
    done = recorded.replay(recording="waiter-1")

    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "identical: 2 of 2 calls")


def test_a_stream_that_was_left_is_told_as_far_as_it_went_and_the_life_goes_on_to_its_end(recorded: Recorded) -> None:
    replayed = recorded.replay("--strict", recording="leaver-1")

    with recorded.kernel.client() as client:
        names = ("leaver", "leaver-replay")
        ends = [[client.inspect(name)["end"]["reason"], *list_lines(client, name, "stdout")] for name in names]
    assert replayed.stdout == "identical: 2 of 2 calls\n2 attempts to reach the network refused\n", replayed.stderr
    assert replayed.returncode == 0
    assert ends == [["killed by SIGSEGV", "begun", "sweep the floor"]] * 2


def test_a_fork_goes_on_behind_a_stream_that_was_left(recorded: Recorded) -> None:
    calls = read_recording(recorded.kernel.state_dir / "recordings" / "leaver-1.recording").calls()
    [number] = [call.begin for call in calls if call.call == "THINK"]
    with recorded.kernel.client() as client:
        edits = {str(number): {"content": "another"}}
        found = run_replay(client, "leaver-1", until=number + 1, then="live", edits=edits)

        assert (found["verdict"], found["entries_replayed"]) == ("identical", 2), found
        assert list_lines(client, "leaver-fork", "stdout") == ["begun", "another"]


def test_words_that_differ_where_an_answer_is_found_are_drift(recorded: Recorded, tmp_path: Path) -> None:
    code = recorded.change(tmp_path, ('ran["stdout"])]', 'ran["stdout"] + "a word")]'))
    done, strict = recorded.replay("--code", code), recorded.replay("--code", code, "--strict")

    assert (done.returncode, strict.returncode) == (0, 1)
    assert done.stdout.splitlines()[:2] == [
        "drifted: 7 of 7 calls",
        "prompt: message 3 (user): recorded '', now 'a word'",
    ]


def test_what_a_users_mask_makes_equal_is_named_with_it(recorded: Recorded, tmp_path: Path) -> None:
    code = recorded.change(tmp_path, ("ticket-1", "ticket-22"))
    done = recorded.replay("--code", code)
    manifest = recorded.kernel.state_dir / "recordings" / "coder-1.recording" / "recording.json"

    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "identical: 7 of 7 calls")
    assert "equal after masks: ticket-\\d+ (1)" in done.stdout.splitlines()
    assert json.loads(manifest.read_text())["masks"] == ["ticket-\\d+"]


def test_a_recorded_question_is_asked_anew_of_several_models(recorded: Recorded) -> None:
    directory = str(recorded.kernel.state_dir / "recordings" / "coder-1.recording")
    with vendor() as met:
        met.models = {"wise": Says([Text("mop it")]), "fast": Says([Text("leave it")])}
        with running(TOML.partition("[[agents]]")[0].format(url=met.base_url), {"OPENAI_API_KEY": met.key}) as kernel:
            words = ["fork", f"{directory}@2", "--only", "--model", "fast", "--model", "wise", "--times", "2"]
            done = run_agentos([*words, "--socket", kernel.socket], kernel.place, environment(kernel.place))
            none = run_agentos(
                ["fork", f"{directory}@3", "--only", "--socket", kernel.socket], kernel.place, environment(kernel.place)
            )

    assert done.returncode == 0, done.stderr
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    assert [(row[0], row[-1]) for row in rows[1:]] == [
        ("wise (recorded)", "sweep the floor"),
        *[("fast", "leave it")] * 2,
        *[("wise", "mop it")] * 2,
    ]
    asked = [exchange.question for exchange in met.exchanges]
    assert {(one.model, len(one.messages), one.messages[1].text) for one in asked} == {
        ("fast", 3, "sweep the floor"),
        ("wise", 3, "sweep the floor"),
    }
    assert (none.returncode, "has 2 questions, and no 3" in none.stderr) == (1, True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"reply": {"success": True, "content": 5}}, "exhausted: 1 of 1 call"),
        ({"reply": {"success": True}, "chunks": [{"delta": 5}, {}]}, "its end: recorded 'exit status 0', now"),
        ({"reply": {"success": False, "code": ["x"], "error": {}}}, "exhausted: 1 of 1 call"),
        ({"request": {"messages": [3, {"role": 4}], "model": []}}, "call 1, THINK: no recorded call is equal"),
        ({"request": {"model": "wise", "messages": "x" * 5}}, "messages: expected a list"),
    ],
)
def test_a_recording_of_others_harms_nothing_but_its_own_replay(
    recorded: Recorded, tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    first = {"model": "wise", "messages": [{"role": "user", "text": "What is to be done in /srv?"}]}
    lives = [Life("coder/1", "coder", 1000.0, exit="exit status 0")]
    made = write_recording(tmp_path / "other.recording", [line(1, **{"request": first, **keys})], lives=lives)
    done = recorded.replay("coder", recording=str(made))

    assert said in f"{done.stdout}{done.stderr}"
    assert "| bug " not in recorded.kernel.said


def test_a_replay_that_does_not_end_is_stopped_and_no_agent_is_left(recorded: Recorded, tmp_path: Path) -> None:
    code = recorded.change(
        tmp_path, ("    who = me.hello()\n", "    who = me.hello()\n    __import__('time').sleep(1000)\n")
    )
    with recorded.kernel.client() as client:
        up(client.replay_start(path="coder-1", code=code))
        second = client.replay_start(path="coder-1")
        until(lambda: client.replay_status()["state"] == "RUNNING", "the replay runs")
        stopped = up(client.replay_stop())

        assert (second["code"], stopped["state"]) == ("already_exists", "IDLE")
        assert [one["state"] for one in client.list_agents() if one["name"] == "coder-replay"] == []
        assert client.replay_status()["state"] == "IDLE"


@pytest.mark.parametrize(
    ("agent", "said"), [("nobody", "has no life of 'nobody'"), ("coder/9", "has no life of 'coder/9'")]
)
def test_without_a_replay_the_exit_status_is_two(recorded: Recorded, agent: str, said: str) -> None:
    done = recorded.replay(agent)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
