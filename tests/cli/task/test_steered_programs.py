"""Programs of others that take messages on their standard input while they work on a task."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.presets import Preset, read_preset
from agentos.userland.cli.task.options import find_programs
from agentos.userland.task.programs import BadProgram
from agentos_sdk import AgentOSClient
from agentos_sdk.steered_program import Events, encode_message
from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel, until
from tests.system.agents import info, lines, up

STEERED = ["python3", "-m", "agentos_sdk.steered_program"]
LISTENER = """
import sys
for line in sys.stdin:
    print("heard", line.strip(), flush=True)
    if "enough" in line:
        sys.exit(0)
"""
PRESET = """
about = "a listener of this test"
endpoint = false
task = ["listener", "{task}"]
steered = ["listener"]
"""
TALKER = r"""
import json, os, sys, time
def tell(**event):
    print(json.dumps(event), flush=True)
for line in sys.stdin:
    text = json.loads(line)["message"]["content"]
    tell(type="assistant", message={"content": [{"type": "text", "text": "I look."}]})
    tell(type="assistant", message={"content": [{"type": "tool_use", "id": "1", "name": "Bash", "input": {"a": "ü"}}]})
    tell(type="user", message={"content": [{"type": "tool_result", "tool_use_id": "1", "content": "seen"}]})
    if text == "wait":
        continue
    tell(type="assistant", message={"content": [{"type": "text", "text": "All of " + text}]})
    tell(type="result", subtype="success", result="All of " + text)
print("closed", file=sys.stderr, flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""


@pytest.fixture
def client(kernel: Kernel) -> Iterator[AgentOSClient]:
    with kernel.client() as connected:
        yield connected


def install(place: Path, interpreter: str = "/usr/bin/env python3") -> dict[str, Any]:
    """Install the listener of this test, and its preset for the user; the variables with which it is found."""
    program, presets = place / "bin" / "listener", place / "config" / "agentos" / "presets"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{interpreter}\n{LISTENER}")
    program.chmod(0o755)
    presets.mkdir(parents=True)
    (presets / "listener.toml").write_text(PRESET)
    return {"XDG_CONFIG_HOME": str(place / "config"), "PATH": f"{place}/bin:/usr/bin:/bin"}


def test_lines_that_are_typed_and_messages_that_are_sent_reach_a_program(agentos: Agentos, kernel: Kernel) -> None:
    terminal = Terminal(kernel, "task", "--with", "listener", "One", **install(kernel.place / "listener"))
    terminal.wait_for("heard One")
    terminal.wait_for("type to tell it more")
    terminal.type("Two words\n")
    terminal.wait_for("heard Two words")
    with kernel.client() as operator:
        name = operator.list_agents()[-1]["name"]
    assert agentos("send", name, "It is\nenough").returncode == 0
    terminal.wait_for("heard It is enough")

    assert terminal.end() == 0, terminal.shown
    terminal.close()


def test_a_program_of_json_is_shown_as_text_and_told_when_no_more_comes(kernel: Kernel, client: AgentOSClient) -> None:
    program = [*STEERED, "stream-json", "wait", "python3", "-c", TALKER]
    up(client.spawn("talker", command=program, restart="temporary"))
    until(lambda: "Bash returned: seen" in lines(client, "talker", "stderr"), "the first message is handled")

    client.send_message({"of": "json"}, to_name="talker")
    until(lambda: "closed" in lines(client, "talker", "stderr"), "its input is closed behind its answer")
    client.send_message("too late", to_name="talker")
    until(lambda: client.mail("talker")["count"] == 0, "the late message was taken")
    assert client.exec("touch go", name="talker")["success"]

    until(lambda: info(client, "talker")["state"] == "exited", "it has ended")
    assert lines(client, "talker", "stdout") == ['All of {"of": "json"}']
    step = ["I look.", 'Bash {"a": "ü"}', "Bash returned: seen"]
    untold = "it has ended its work before it could be told: too late"
    assert lines(client, "talker", "stderr") == [*step, *step, "closed", untold]


def test_a_program_that_reads_nothing_ends_with_its_own_status(kernel: Kernel, client: AgentOSClient) -> None:
    program = [*STEERED, "stream-json", "x" * 100_000, "sh", "-c", "echo no json; exit 5"]

    up(client.spawn("deaf", command=program, restart="temporary"))

    until(lambda: info(client, "deaf")["state"] == "exited", "it has ended")
    assert client.wait(name="deaf")["exit_code"] == 5
    assert lines(client, "deaf", "stdout") == ["no json"]
    assert lines(client, "deaf", "stderr") == ["it has ended before it took all that it was told"]


@pytest.mark.parametrize(
    ("events", "stdout", "stderr"),
    [
        ([{"type": "result", "result": "one"}], "one\n", ""),
        ([{"type": "result", "result": "cut within \ud83d"}], "cut within ?\n", ""),
        ([{"type": "result", "is_error": True, "subtype": "error_max_turns"}], "", "it has failed: error_max_turns\n"),
        ([{"type": "assistant", "message": {"content": [{"type": "text", "text": "half"}]}}], "", "half\n"),
        ([[], 5, None, {"type": 1}, {"type": "assistant"}, {"type": "user", "message": {"content": [1]}}], None, ""),
    ],
)
def test_odd_events_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str], events: list[object], stdout: str | None, stderr: str
) -> None:
    shown = Events()
    for each in "".join(json.dumps(event) + "\n" for event in events).encode():
        shown.feed(bytes([each]))
    shown.finish()

    out, err = capsys.readouterr()
    assert (out, err) == (out if stdout is None else stdout, stderr)


def test_a_message_of_several_lines_is_one_line() -> None:
    assert encode_message("lines", "a\nb") == b"a b\n"
    assert json.loads(encode_message("stream-json", "a\n\ud83d"))["message"]["content"] == "a\n\ud83d"


def test_a_script_of_python_cannot_be_steered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: AgentOSClient
) -> None:
    for name, value in install(tmp_path, f"{tmp_path}/bin/python").items():
        monkeypatch.setenv(name, value)

    with pytest.raises(BadProgram, match=r"its messages are for a command, and .*listener is a script of Python"):
        find_programs(client, ("listener",), None, None, None)


def test_presets_say_which_programs_take_messages() -> None:
    assert read_preset("claude-code").messages == "stream-json"
    assert not any("{task}" in word for word in read_preset("claude-code").steered)
    with pytest.raises(ValueError, match=r"messages: .* steered"):
        Preset(about="x", messages="stream-json")
