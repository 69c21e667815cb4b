"""Recordings that a kernel makes: by the operator's calls, and of agents that have `record`."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

from agentos.recordings.reader import RecordedCall, Recording, read_recording
from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, until
from tests.support.runs.rounds import rounds
from tests.support.wire import CANCEL, HELLO, INSPECT, NOOP
from tests.system.agents import ask, relay, up

KEY = "canary-key-0123456789"
TOML = """
[llm]
provider = "offline"
openai_endpoint = true

[[http.secrets]]
name = "canary"
host = "example.com"
header = "x-key"
value_from = "env:CANARY"

[[agents]]
name = "coder"
script = "{place}/coder.py"
restart = "temporary"
record = true
"""
CODER = """
import json, os, urllib.request
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    me.hello()
    me.think("what is " + "CANARY" + "?")
    question = {"model": "offline", "messages": [{"role": "user", "content": "and by HTTP?"}]}
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(question).encode(), headers)).read()
    with me.exec_stream("echo one; echo two") as output:
        list(output)
raise SystemExit(3)
"""


def path_of(kernel: Kernel, name: str) -> Path:
    return kernel.place / "state" / "recordings" / f"{name}.recording"


def exported(client: AgentOSClient, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(up(client.record_status(True, **more))["recording"])
    return found


def test_the_operators_calls_are_recorded_and_exported(client: AgentOSClient) -> None:
    begun = up(client.record_start())
    client.store("recorded", {"a": [1]})
    client.fetch("recorded")
    client.exec("true")
    running = up(client.record_status())
    ended = up(client.record_stop())

    assert (begun["state"], running["state"], ended["state"]) == ("RECORDING", "RECORDING", "IDLE")
    assert (running["entry_count"], ended["entry_count"], ended["path"]) == (3, 3, begun["path"])
    entries = exported(client)
    assert [(one["id"], one["opcode_name"], one["opcode"]) for one in entries] == [
        (1, "STORE", 0x30),
        (2, "FETCH", 0x31),
        (3, "EXEC", 0x04),
    ]
    assert entries[1]["response"]["value"] == {"a": [1]}
    assert entries[0]["agent_name"] == "operator"
    assert all(one["success"] and one["duration_us"] > 0 for one in entries)
    assert [one["id"] for one in exported(client, limit=1, since_id=1)] == [2]
    [only] = up(client.record_status(get_entries=True, since_id=2))["entries"]
    assert only == entries[2]


def test_what_is_left_out_of_an_export_is_in_the_recording(client: AgentOSClient) -> None:
    path = up(client.record_start(include_exec=False, include_think=False))["path"]
    client.think("hello")
    client.exec("true")
    client.store("kept", 1)

    assert up(client.record_stop())["entry_count"] == 3
    assert [one["opcode_name"] for one in exported(client)] == ["STORE"]
    assert [call.call for call in read_recording(path).calls()] == ["THINK", "EXEC", "STORE"]


def test_of_other_callers_nothing_is_recorded(client: AgentOSClient) -> None:
    up(client.record_start(filter_agents=[999]))
    client.store("unseen", 1)

    assert up(client.record_stop())["entry_count"] == 0
    assert exported(client) == []


def test_calls_that_make_no_sense_are_refused(client: AgentOSClient) -> None:
    refused = [client.record_stop(), client.record_start(["nobody"]), client.record_start(["a"], filter_agents=[1])]
    up(client.record_start(filter_agents=[999]))
    refused.append(client.record_start())
    up(client.record_stop())

    assert [one["code"] for one in refused] == ["bad_request", "not_found", "bad_request", "already_exists"]


def test_only_the_operator_records_and_reads(kernel: Kernel, client: AgentOSClient) -> None:
    agent = relay(kernel, client, "curious", permissions="unrestricted")

    for method in ("record_start", "record_stop", "record_status"):
        reply = ask(client, agent, method)
        assert (reply["code"], "only the operator may do that" in reply["error"]) == ("permission_denied", True)


MEASURED = {
    ".since",
    ".uptime_ms",
    ".usage.memory",
    ".usage.peak",
    ".usage.pids",
    ".usage.cpu_seconds",
}  # anew by each INSPECT


def test_an_agent_cannot_tell_that_it_is_recorded(kernel: Kernel, client: AgentOSClient) -> None:
    agent = kernel.spawn("hidden", permissions="unrestricted")

    def look() -> tuple[bytes, Any]:
        with kernel.connect_as(agent) as wire:
            welcome = wire.ask(HELLO, {"protocol": 2}).body
            return welcome, wire.call(INSPECT, {"name": "hidden"}, 7)

    greeted, before = look()
    up(client.record_start(["hidden"]))
    greeted_then, recorded = look()
    up(client.record_stop())

    assert greeted_then == greeted
    assert flatten(recorded).keys() == flatten(before).keys()
    assert {path for path, value in flatten(before).items() if flatten(recorded)[path] != value} <= MEASURED


def flatten(value: Any, path: str = "") -> dict[str, object]:
    if isinstance(value, Mapping):
        return {key: one for name, item in value.items() for key, one in flatten(item, f"{path}.{name}").items()}
    return {path: value}


def test_what_the_connection_answers_itself_is_recorded(kernel: Kernel, client: AgentOSClient) -> None:
    agent = kernel.spawn("raw")
    name = up(client.record_start(["raw"]))["name"]
    with kernel.connect_as(agent) as wire:
        wire.hello()
        wire.call(CANCEL, {"id": 99}, 5)
        wire.ask(0x99, b"?", 6)
        wire.ask(NOOP, b"\xff", 8)
        wire.ask(NOOP, b"without a number", 0)
    up(client.record_stop())

    found = read_recording(path_of(kernel, name))
    assert [call.call for call in found.calls()] == ["HELLO", "CANCEL", "0x99", "NOOP", "NOOP"]
    assert [(life.life, life.reason) for life in found.manifest.lives] == [("raw/1", "it began before the recording")]


def recorded_life(kernel: Kernel, name: str) -> tuple[Recording, list[RecordedCall]]:
    path = path_of(kernel, name)

    def has_ended() -> bool:
        return path.exists() and read_recording(path).manifest.ended is not None

    until(has_ended, "the recording has ended")
    found = read_recording(path)
    return found, [*found.calls()]


def test_the_life_of_an_agent_with_record_is_found_after_it_failed(own_kernel: OwnKernel, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "coder.py").write_text(dedent(CODER).replace("CANARY", KEY))
    kernel = own_kernel(TOML.format(place=tmp_path), {"CANARY": KEY})

    found, calls = recorded_life(kernel, "coder-1")

    [life] = found.manifest.lives
    assert (life.life, life.exit, life.failed, life.replayable) == ("coder/1", "exit status 3", True, True)
    assert calls[0].call == "HELLO"
    first, second, command = (call for call in calls if call.call != "HELLO")
    assert [call.call for call in (first, second, command)] == ["THINK", "THINK", "EXEC"]
    assert first.request["messages"] == [{"role": "user", "text": "what is ⟦secret 1 canary⟧?"}]
    assert second.request["messages"][0]["text"] == "and by HTTP?"
    assert first.reply is not None
    assert second.reply is not None
    assert second.reply.keys() >= first.reply.keys()
    assert "".join(chunk["text"] for chunk in command.chunks) == "one\ntwo\n"
    for path in (kernel.place / "state" / "recordings").rglob("*.json*"):
        assert KEY.encode() not in path.read_bytes()

    def agentos(*words: str) -> str:
        done = run_agentos(
            [*words, "--state-dir", str(kernel.place / "state")], kernel.place, environment(kernel.place)
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "coder-1" in agentos("recordings", "ls")
    shown = agentos("recordings", "show", "coder-1", "--contents")
    assert "and by HTTP?" in shown
    assert agentos("trace", "coder-1", "--contents") == shown
    assert agentos("recordings", "rm", "coder-1") == "coder-1 is removed\n"
    assert agentos("recordings", "ls") == "no recordings\n"


CHATTY = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    said = []
    while True:
        said.append({"role": "user", "content": "x" * 1000})
        me.think(messages=said[-100:])
        me.store("n", len(said), scope="session")
"""


def test_a_kernel_that_is_killed_leaves_recordings_that_can_be_read(own_kernel: OwnKernel, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "coder.py").write_text(dedent(CHATTY))
    kernel = own_kernel(TOML.format(place=tmp_path), {"CANARY": KEY})

    for life in range(1, rounds(5) + 1):
        path = path_of(kernel, f"coder-{life}") / "calls.jsonl"
        until(partial(has_bytes, path, 20_000 * (1 + life % 8)), "it is being written")
        kernel.kill()
        found = read_recording(path.parent)
        calls = [*found.calls()]
        assert found.manifest.ended is None
        assert len(calls) > 10
        questions = [call.request["messages"] for call in calls if call.call == "THINK"]
        assert [len(messages) for messages in questions] == [min(n, 100) for n in range(1, len(questions) + 1)]
        assert [call.call for call in calls[:4]] == ["THINK", "STORE", "THINK", "STORE"]
        kernel.start_again()


def has_bytes(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


def test_record_names_an_agent_that_there_is(kernel: Kernel, tmp_path: Path) -> None:
    done = run_agentos(
        ["run", "--record", "nobody", "--state-dir", str(tmp_path / "state")], tmp_path, environment(tmp_path)
    )

    assert done.returncode == 1
    assert "--record nobody: the configuration has no agent of that name" in done.stderr + done.stdout
