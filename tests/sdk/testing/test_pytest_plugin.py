"""The pytest plugin, in a pytest of its own as a user's: a real kernel and a fake one."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from agentos_sdk.testing import KernelFailed, RunningKernel
from tests.support.kernel import until
from tests.support.wire import PATIENCE

PYTEST = (sys.executable, "-m", "pytest", "-q")
OURS = "agentos"
AGENT = """
from agentos_sdk import AgentOSClient

with AgentOSClient() as kernel:
    while True:
        for message in kernel.recv_messages(timeout=300)["messages"]:
            kernel.send_message(message["message"] * 2, to=message["from_id"])
"""
CONFIG = '[[supervisor.children]]\nname = "double"\nscript = "agent.py"\n'
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.agentos_config("agentos.toml")
def test_in_a_jail(agentos_kernel):
    with agentos_kernel.client() as client:
        client.send_message(21, to_name="double")
        [message] = client.recv_messages(timeout=300)["messages"]
        assert message["message"] == 42
        assert client.inspect("double")["isolation"]["level"] == "standard"
        Path("kernel").write_text(agentos_kernel.socket)

def test_without_a_file_there_are_no_agents_and_the_model_is_offline(agentos_kernel):
    with agentos_kernel.client() as client:
        assert client.list_agents() == []
        assert client.think("why?")["success"]

def test_with_a_fake_kernel(agentos_fake_kernel):
    agentos_fake_kernel.deliver(4)
    agentos_fake_kernel.start("agent.py")
    assert agentos_fake_kernel.wait_for("send").fields["message"] == 8
"""


@pytest.mark.usefixtures("kernels")
def test_its_fixtures_are_there_without_an_import(tmp_path: Path) -> None:
    for name, text in (("agent.py", AGENT), ("agentos.toml", CONFIG), ("test_agent.py", TESTS)):
        (tmp_path / name).write_text(text)

    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "AGENTOS_SOCKET"))
    }
    others = {each.name for each in metadata.entry_points(group="pytest11")} - {OURS}  # a third of its start
    without = [word for name in sorted(others) for word in ("-p", f"no:{name}")]
    done = subprocess.run(
        [*PYTEST, "-p", "no:cacheprovider", *without, "--strict-markers", "-W", "error"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert not os.path.exists((tmp_path / "kernel").read_text()), "the kernel has ended and its directory is removed"


CASSETTE_TESTS = """
def test_it_is_cheap(agentos_kernel, cassette):
    with agentos_kernel.client() as client:
        for question in QUESTIONS:
            reply = client.think(question)
            assert reply["success"], reply["error"]
            assert reply["content"].endswith(question)

"""


@pytest.mark.usefixtures("kernels")
def test_recorded_answers_are_used_in_the_next_run_and_what_is_unused_is_a_warning(tmp_path: Path) -> None:
    file, recorded = tmp_path / "test_it.py", tmp_path / "cassettes" / "test_it" / "test_it_is_cheap.jsonl"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of our own tests take two thirds of a start
    plugin = "agentos_sdk.testing.pytest_plugin"

    def run(questions: list[str], *options: str, ci: str = "") -> str:
        file.write_text(f"QUESTIONS = {questions}\n{CASSETTE_TESTS}")
        done = subprocess.run(
            [*PYTEST, "-p", plugin, "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env={**environment, "CI": ci},
            capture_output=True,
            text=True,
            timeout=PATIENCE * 3,
        )
        return done.stdout

    assert "1 passed" in run(["red", "blue"], "--agentos-cassette=record")
    before = recorded.read_text()
    assert "1 passed" in (out := run(["blue"]))
    assert "1 of 2 answers were not used: entries 1" in out
    out = run(["green"], "--agentos-cassette=record", ci="true")
    assert "has no answer to this question" in out
    assert "message 1 (user) text: recorded 'red', asked 'green'" in out
    assert "--cassette-mode record is ignored: CI is set" in out
    assert recorded.read_text() == before


def test_the_plugin_itself_loads_nothing_of_the_sdk() -> None:
    program = (
        "import sys, agentos_sdk.testing.pytest_plugin; print([name for name in sys.modules if 'agentos' in name])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)

    assert done.stdout == "['agentos_sdk', 'agentos_sdk.testing', 'agentos_sdk.testing.pytest_plugin']\n"


@pytest.mark.usefixtures("kernels")
def test_a_wrong_configuration_is_said_with_its_mistakes() -> None:
    with pytest.raises(KernelFailed, match=r"supervisr"), RunningKernel(toml="[supervisr]\n"):
        pass


@pytest.mark.usefixtures("kernels")
def test_a_line_that_does_not_come_and_a_kernel_that_ends_with_an_error_fail_the_test() -> None:
    with pytest.raises(KernelFailed, match="exit status -9"), RunningKernel() as kernel:
        with pytest.raises(AssertionError, match=r"(?s)no line with 'nonsense', not within 0\.01 s.+ready, listening"):
            kernel.wait_for_line("nonsense", timeout=0.01)
        assert kernel.wait_for_line("ready, listening")
        kernel.process.kill()
        kernel.process.wait()


@pytest.mark.usefixtures("kernels")
def test_a_kernel_ends_with_the_tests_that_are_killed() -> None:
    program = (
        "from agentos_sdk.testing import RunningKernel\n"
        "with RunningKernel() as kernel:\n"
        "    print(kernel.process.pid, kernel.socket, flush=True)\n"
        "    input()\n"
    )

    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        pid, socket = tests.stdout.readline().split()
        tests.kill()

    until(lambda: not Path("/proc", pid).exists(), "the kernel has ended")
    until(lambda: not Path(socket).parent.exists(), "its directory is removed")


@pytest.mark.usefixtures("kernels")
def test_an_interrupt_while_the_kernel_starts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = RunningKernel()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel, "wait_for_line", interrupt)
    with pytest.raises(KeyboardInterrupt), kernel:
        pass

    assert kernel.process.poll() is not None
    assert not Path(kernel.socket).parent.exists()
