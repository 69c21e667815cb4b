"""What `make compare` measures with; the whole is played by hand, as it takes a quarter of an hour."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.compare import __main__ as command
from tests.compare import report
from tests.compare.machine import Machine
from tests.compare.programs import tools
from tests.compare.setups import PYTHON, Outcome, read_results
from tests.support.kernel import until
from tests.support.wire import PATIENCE

LEAK = "kept = []\nwhile True: kept.append(b'x' * (4 << 20))"
SLEEP = "import time; time.sleep(1000)"
LEAVES_A_PROCESS = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
"""


def run(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program], start_new_session=True)


@pytest.fixture
def machine() -> Machine:
    here = {one.pid for one in Machine(1 << 30).processes()}  # what other tests of this process have started
    return Machine(256 << 20, here)


def test_the_largest_process_is_killed_when_the_memory_is_full(machine: Machine) -> None:
    with machine.playing():
        small, large = run(SLEEP), run(LEAK)

        large.wait(PATIENCE)

        assert small.poll() is None
        assert (machine.killed, large.returncode) == (1, -9)
        assert machine.peak > machine.memory

    assert not Path("/proc", str(small.pid)).exists()
    small.wait(PATIENCE)


def test_a_child_that_has_not_begun_its_program_uses_nothing(machine: Machine) -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    program = run(SLEEP)
    try:
        until(lambda: {one.pid for one in machine.measure()} == {program.pid}, "the other one has begun")
        assert child in {one.pid for one in machine.processes()}
    finally:
        machine.clear()
        program.poll()


def test_what_a_program_leaves_behind_is_found_and_ended(machine: Machine) -> None:
    with machine.playing():
        assert run(LEAVES_A_PROCESS).wait(PATIENCE) == 0

        [orphan] = machine.processes()

    assert not Path("/proc", str(orphan.pid)).exists()


def test_the_model_calls_the_tool_of_a_task_and_repeats_its_result() -> None:
    def ask(url: str, *messages: dict[str, str]) -> SimpleNamespace:
        body = json.dumps({"model": "simulated", "messages": messages}).encode()
        with urllib.request.urlopen(f"{url}/chat/completions", body) as answer:
            read: SimpleNamespace = json.load(answer, object_hook=lambda fields: SimpleNamespace(**fields))
            return read

    text, expected = tools.question(5)
    with command.provider() as (url, _):
        [call] = ask(url, {"role": "user", "content": text}).choices[0].message.tool_calls
        said = ask(url, {"role": "tool", "content": "42"}).choices[0].message.content

    assert (call.function.name, tools.add(**json.loads(call.function.arguments))) == ("add", expected)
    assert said == "The answer is 42."


def test_wrong_answers_dont_count_and_right_ones_once(tmp_path: Path) -> None:
    _, expected = tools.question(0)
    lines = [(0, expected, 12.0), (0, expected, 13.0), (1, -1, 14.0)]
    (tmp_path / "results").write_text(
        "".join(
            json.dumps({"number": number, "answer": f"The answer is {answer}.", "at": at}) + "\n"
            for number, answer, at in lines
        )
    )

    assert read_results(tmp_path / "results", start=10.0) == [3.0]
    assert read_results(tmp_path / "none", start=10.0) == []


def test_the_table_has_the_median_and_the_range() -> None:
    runs = [
        Outcome("AgentOS", 150, [8.0, 59.0 + number], 700 << 20, sent=0, key=False, orphans=0, killed=0)
        for number in (0, 2, 1)
    ]

    *_, row = report.as_table(runs).splitlines()

    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["AgentOS", "2", "8.0", "60.0 (59.0 to 61.0)", "700", "0", "0"]


@pytest.mark.parametrize(("setup", "stolen", "orphans"), [("supervisord", True, 1), ("AgentOS", False, 0)])
def test_what_a_setup_lets_the_agents_do(setup: str, stolen: bool, orphans: int) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing, run `make compare`: {setup} is NOT tried with misbehaving agents")

    outcome = command.play_once(setup, seconds=30)

    assert outcome.good
    assert (outcome.sent > 0, outcome.key, outcome.orphans) == (stolen, stolen, orphans)
