"""Programs that show what a kernel tells them outside of calls, or ask about what isn't there at a replay."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agentos.recordings.format import Life
from agentos.recordings.reader import read_recording
from agentos_sdk.testing.replays import run_replay
from tests.recordings.written import line, write_recording
from tests.support.kernel import Kernel, running, until
from tests.support.runs.enter import let_in
from tests.system.agents import RECORDED, in_state, lines

from .test_replays import has_ended

TOML = """
[llm]
provider = "offline"

[[agents]]
name = "partner"
command = ["sleep", "1000"]
"""
AGENT = f'{RECORDED}permissions = "sandboxed"\n'
PROGRAMS = {
    "environment": """
    shown = {name: value for name, value in os.environ.items() if "KEY" not in name}
    me.think(json.dumps(shown, sort_keys=True))
""",
    "host": """
    me.think(f"host {socket.gethostname()}, {os.uname().nodename}, in {os.getcwd()}, uid {os.getuid()}")
    print(subprocess.run(["hostname"], capture_output=True, text=True).stdout)
""",
    "agent_keys": """
    me.store("plan", {"step": 1}, scope="agent")
    print(me.fetch("plan"), me.fetch("missing"))
    print(me.delete("plan"), me.fetch("plan"), me.keys())
    me.think("done")
""",
    "session_keys": """
    me.store("plan", [1, None], scope="session", ttl=600)
    print(me.fetch("plan")["value"], me.delete("plan"), me.delete("plan"))
    me.think("done")
""",
    "refused_calls": """
    for reply in (me.usage(), me.usage(hour=True), me.store("global", 1, ttl=60), me.get_audit_log()):
        print(reply["code"], reply["error"])
    me.think("refused")
""",
    "children": """
    for name in ("one", "two"):
        number = me.spawn(name, command=["sleep", "1000"])["id"]
        print(me.inspect(name=name)["name"], me.inspect(agent_id=number)["name"])
        print(me.send_message(name, to=number)["success"], me.send_message(name, to_name=name)["success"])
        print(me.exec("echo within", agent_id=number)["success"], me.kill(name=name))
    me.think("all ended")
""",
}
SUBSCRIBERS = {
    "subscriber": 'me.subscribe(["AGENT_*"])',
    "late_subscriber": 'me.subscribe(["AGENT_*"], since=0)',
    "half_subscriber": 'me.subscribe(["AGENT_*", "STATE_*"]); me.unsubscribe(["STATE_*"])',
    "former_subscriber": 'me.subscribe(["AGENT_*"]); me.unsubscribe(all=True)',
}
SUBSCRIBES = """
    {subscribes}
    me.poll_events(max_events=1000)
    me.think("subscribed")
    if name == "crashes" and not os.path.exists("crashed"):
        open("crashed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    me.kill(agent_id=me.spawn(name + "-child", command=["sleep", "1000"])["id"])
    print("AGENT_EXITED" in [event["type"] for event in me.poll_events(max_events=1000)["events"]], flush=True)
"""
PROGRAMS |= {name: SUBSCRIBES.format(subscribes=text) for name, text in SUBSCRIBERS.items()}
HEAD = """
import json, os, signal, socket, subprocess, sys
from agentos_sdk import AgentOSClient

with AgentOSClient() as me:
    name = me.hello()["name"]
"""


@pytest.fixture(scope="module")
def kernel(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel whose agents, one for each program, have a recorded life each."""
    code = tmp_path_factory.mktemp("code")
    let_in(code, tmp_path_factory.getbasetemp())
    toml = TOML
    for name, text in PROGRAMS.items():
        (code / f"{name}.py").write_text(HEAD + text)
        toml += AGENT.format(name=name, code=code)
    (code / "crashes.py").write_text(HEAD + SUBSCRIBES.format(subscribes=SUBSCRIBERS["subscriber"]))
    toml += AGENT.format(name="crashes", code=code).replace("record = true", 'on_crash = "resume"\nworkspace = "keep"')
    with running(toml.replace('"temporary"\non_crash', '"transient"\non_crash')) as started:
        with started.client() as client:
            for name in PROGRAMS:
                in_state(client, name, "exited")
                assert client.inspect(name)["end"]["reason"] == "exit status 0", client.logs(name)
                manifest = started.state_dir / "recordings" / f"{name}-1.recording" / "recording.json"
                until(partial(has_ended, manifest), f"{name} is recorded")
            for name in ("one", "two"):
                started.spawn(name)  # which aren't those that the recorded life had spawned
        yield started


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_told_the_same_again(kernel: Kernel, name: str) -> None:
    with kernel.client() as client:
        found = run_replay(client, f"{name}-1")

        assert (found["verdict"], found["drift"]) == ("identical", []), found["divergence"]
        assert lines(client, f"{name}-replay", "stdout") == lines(client, name, "stdout")


@pytest.mark.parametrize(
    ("call", "given", "reply"),
    [
        ("inspect", {"agent_id": 1}, {"name": "one"}),
        ("kill", {"agent_id": 1}, {"killed": True}),
        ("pause", {"agent_id": 1}, {"paused": True}),
        ("send_message", {"to": 1, "message": [5]}, {"delivered_to": 1}),
        ("exec", {"agent_id": 1, "command": "echo within"}, {"stdout": "within\n", "exit_code": 0}),
        ("send_message", {"to_name": "nobody", "message": [5]}, {"delivered_to": 7}),
        ("read_file", {"path": "/workspace/none"}, {"content": "of elsewhere", "size": 12}),
    ],
)
def test_what_is_not_there_any_more_is_answered(
    kernel: Kernel, tmp_path: Path, call: str, given: dict[str, object], reply: dict[str, object]
) -> None:
    """In a recording from elsewhere ids mean nothing: 1 is the partner's in this kernel."""
    made = write_call(tmp_path, call, given, reply)
    with kernel.client() as client:
        assert client.inspect(agent_id=1)["name"] == "partner"
        found = run_replay(client, made, code=str(tmp_path))

        assert (found["verdict"], found["entries_replayed"]) in (("identical", 1), ("drifted", 1)), found["divergence"]
        assert {one["kind"] for one in found["drift"]} <= {"file"}
        assert client.inspect("partner")["state"] == "running"


def write_call(place: Path, call: str, given: dict[str, object], reply: dict[str, object]) -> str:
    """The recording of a life from elsewhere that has made one call, beside its program."""
    op = {"send_message": "SEND", "read_file": "READ"}.get(call, call.upper())
    request = {"id" if key == "agent_id" else key: value for key, value in given.items()}
    (place / "host.py").write_text(f"{HEAD}    print(json.dumps(me.{call}(**{given})))\n")
    place.chmod(0o755)
    lines = [line(1, op, life="host/1", request=request, reply={"success": True, **reply})]
    lives = [Life("host/1", "host", 1000.0, exit="exit status 0")]
    return str(write_recording(place / "other.recording", lines, lives=lives))


def test_a_call_that_is_refused_today_is_named_where_it_stands(kernel: Kernel, tmp_path: Path) -> None:
    made = write_call(tmp_path, "tool_call", {"tool": "nobody.has"}, {"content": [], "is_error": False})
    with kernel.client() as client:
        found = run_replay(client, made, code=str(tmp_path))

    assert (found["verdict"], found["entries_replayed"]) == ("diverged", 0)
    assert found["divergence"].startswith("host/1, call 1, TOOL_CALL: it was allowed, and is refused now: ")


@pytest.mark.parametrize("name", SUBSCRIBERS)
def test_a_fork_is_told_the_events_that_it_has_subscribed_to(kernel: Kernel, name: str) -> None:
    calls = read_recording(kernel.state_dir / "recordings" / f"{name}-1.recording").calls()
    [number] = [call.begin for call in calls if call.call == "THINK"]
    with kernel.client() as client:
        found = run_replay(client, f"{name}-1", until=number + 1, then="live")

        assert found["verdict"] == "identical", found["divergence"]
        [recorded], [live] = lines(client, name, "stdout"), lines(client, f"{name}-fork", "stdout")
        assert live == recorded
        assert live == str(name != "former_subscriber")


def test_a_life_that_goes_on_after_a_crash_is_told_the_events_that_it_has_subscribed_to(kernel: Kernel) -> None:
    with kernel.client() as client:
        in_state(client, "crashes", "exited")

        assert any("goes on after the crash" in text for text in lines(client, "crashes", "kernel"))
        assert lines(client, "crashes", "stdout") == ["True"]
