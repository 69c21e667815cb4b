"""``agentos trace``: lives of agents beside a kernel and without one."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, shared, until
from tests.system.agents import in_state, info, up, write

TOML = """
[llm]
provider = "offline"
[llm.prices]
offline = { input = 1000, output = 1000 }
[llm.offline]
base = 0.2
"""
SCRIPT = """
from agentos_sdk import AgentOSClient
with AgentOSClient() as kernel:
    kernel.hello()
    kernel.write_file("/workspace/notes.md", "42")
    kernel.think("the first \\x1b[2J question", system_instruction="be brief")
    kernel.read_file("/etc/shadow")
    for number in range(150):
        kernel.read_file("/workspace/notes.md")
    kernel.think("late?", timeout=0.05)
raise SystemExit(4)
"""


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    """Its agent has lived twice, and has failed each time."""
    with shared(TOML) as kernel, kernel.client() as client:
        script = write(kernel, "writer.py", SCRIPT)
        for _ in range(2):
            up(client.spawn("writer", script))
            in_state(client, "writer", "exited")
        number = info(client, "writer")["id"]
        done = {"agent_id": number, "category": "agents"}
        until(lambda: client.get_audit_log(**done)["entries"][-1:], "the end is in the log")
        until(
            lambda: [each for each in client.get_audit_log(**done)["entries"] if each["call"] == "AGENT_EXITED"],
            "its end is in the audit log",
        )
        yield kernel


def run(kernel: Kernel, *words: str, width: int = 80) -> "subprocess.CompletedProcess[str]":
    env = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket, "COLUMNS": str(width)}
    return run_agentos(["trace", *words, "--state-dir", str(kernel.state_dir)], kernel.place, env)


def printed(kernel: Kernel, *words: str) -> list[str]:
    done = run(kernel, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def as_json(kernel: Kernel, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads("\n".join(printed(kernel, *words, "--json")))
    return found


def test_the_last_life_is_shown_and_says_what_is_left_out(kernel: Kernel) -> None:
    first, header, *calls, total, questions, cut = printed(kernel, "writer")

    assert first.startswith("writer: life 2 of 2 in the log, from 20")
    assert first.endswith(": exit status 4")
    assert header.split()[:3] == ["START", "TOOK", "CALL"]
    assert len(calls) >= 100
    assert max(map(len, [header, *calls, total, questions, cut])) <= 80
    assert cut.endswith(" earlier calls of this life aren't shown: -n 156 shows all")
    whole = printed(kernel, "writer", "-n", "156")
    assert not any("aren't shown" in line for line in whole)
    assert sum(" READ " in line for line in whole) == 151


def test_its_calls_have_start_duration_tokens_and_contents(kernel: Kernel) -> None:
    found = as_json(kernel, "writer", "-n", "1000", "--contents")
    calls = {call["call"]: call for call in reversed(found["calls"])}
    asked, late = [call for call in found["calls"] if call["call"] == "THINK"]

    assert (found["life"], found["lives"], found["left_out"], found["reason"]) == (2, 2, 0, "exit status 4")
    assert [call["start"] for call in found["calls"]] == sorted(call["start"] for call in found["calls"])
    assert calls["AGENT_READY"]["start"] == 0
    assert asked["duration"] >= 0.2
    assert asked["think"]["queued"] < asked["duration"]
    assert asked["think"]["cost"] == pytest.approx((asked["think"]["tokens_in"] + asked["think"]["tokens_out"]) / 1000)
    assert asked["contents"]["messages"][0]["text"] == "the first \x1b[2J question"
    assert (late["outcome"], late["contents"]["outcome"]) == ("timeout", "timeout")


def test_contents_are_shown_below_their_question_without_control_characters(kernel: Kernel) -> None:
    lines = printed(kernel, "writer", "-n", "1000", "--contents")
    [at] = [number for number, line in enumerate(lines) if " be brief" in line]

    head = next(line for line in reversed(lines[:at]) if not line.startswith(" " * 20))
    assert " THINK " in head
    assert lines[at].split("|")[0].strip() == "system"
    assert lines[at + 1].endswith("user    | the first \\x1b[2J question")
    assert "[offline echo, no model was asked]" in lines[at + 2]
    assert all(line.isprintable() and len(line) <= 80 for line in lines)


def test_an_earlier_life_and_one_that_does_not_exist(kernel: Kernel) -> None:
    assert printed(kernel, "writer", "--life", "1")[0].startswith("writer: life 1 of 2")
    assert printed(kernel, "writer", "--life", "-2")[0].startswith("writer: life 1 of 2")
    for number in ("0", "3", "-3"):
        done = run(kernel, "writer", "--life", number)
        assert done.returncode == 1
        assert done.stderr == (f"agentos: --life {number}: writer has 2 in the log: 1 to 2, or -1 for the last\n")
    nobody = run(kernel, "nobody", "--json")
    assert json.loads(nobody.stdout)["error"].startswith("no life of nobody is in the audit log")


def test_it_needs_no_kernel_but_for_contents(kernel: Kernel) -> None:
    words = ("writer", "--socket", "/nowhere")
    assert run(kernel, *words).returncode == 0
    without = run(kernel, *words, "--contents")
    assert (without.returncode, "agentos: " in without.stderr) == (1, True)
