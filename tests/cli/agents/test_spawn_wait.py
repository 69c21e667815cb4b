"""``agentos spawn --wait``: to be an agent's terminal."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel, environment, until
from tests.support.wire import PATIENCE


@pytest.mark.parametrize("pause", ["", "sleep 0.4;"])
@pytest.mark.parametrize(("end", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137)])
def test_its_exit_status_is_the_agents(agentos: Agentos, pause: str, end: str, status: int) -> None:
    done = agentos("spawn", "job", "--wait", "--", "sh", "-c", f"echo out; echo err >&2; {pause}{end}")

    assert (done.returncode, done.stdout, done.stderr) == (status, "out\n", "err\n")


@pytest.mark.parametrize("restart", ["temporary", "transient"])
def test_a_short_job_that_ended_well_is_no_failure_anywhere(agentos: Agentos, kernel: Kernel, restart: str) -> None:
    name = f"brief-{restart}"  # LOGS shows what all agents of a name wrote
    done = agentos("spawn", name, "--restart", restart, "--", "true")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} has ended already: exit status 0\n", "")
    assert re.search(r"  exit status 0$", agentos("ps", "-a").stdout, re.MULTILINE)
    assert re.search(r"^ended +exit status 0$", agentos("inspect", name).stdout, re.MULTILINE)
    assert [line.split("| ")[1] for line in agentos("logs", name).stdout.splitlines()] == ["ended: exit status 0"]
    kernel.wait_line(f"{name}: exit status 0$")


@pytest.mark.parametrize("options", [("--restart", "permanent"), ("--ready", "hello")])
def test_an_agent_that_should_have_stayed_did_not_start(agentos: Agentos, options: tuple[str, ...]) -> None:
    failed = agentos("spawn", "brief", *options, "--", "true")

    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "agentos: brief did not start: exit status 0 before it was ready\n"


def test_all_of_a_short_job_is_shown(agentos: Agentos) -> None:
    done = agentos("spawn", "count", "--wait", "--", "seq", "1", "1500")

    assert done.stdout.split() == [str(number) for number in range(1, 1501)]


def test_what_is_no_longer_kept_is_said(agentos: Agentos) -> None:
    done = agentos("spawn", "much", "--wait", "--", "sh", "-c", "seq 1 9000; sleep 0.4")

    assert done.stdout.split()[-1] == "9000"
    assert len(done.stdout.split()) == 9000 or "older lines are no longer kept" in done.stderr


def test_a_script_that_cannot_run_is_explained(agentos: Agentos, kernel: Kernel) -> None:
    script = kernel.place / "typo.py"
    script.write_text("def f(:\n")

    done = agentos("spawn", "typo", "--wait", str(script))

    assert (done.returncode, done.stdout) == (1, "")
    first, *_, last = done.stderr.splitlines()
    assert (first.strip(), last) == ('File "/agent/typo.py", line 1', "SyntaxError: invalid syntax")


def test_escape_sequences_are_shown_and_not_obeyed(agentos: Agentos) -> None:
    script = r"printf '\033]0;title\007\033[2J\233x\n'; printf '\033[31m\nagentos: evil runs\n' >&2; "

    done = agentos("spawn", "evil", "--wait", "--", "sh", "-c", script + "sleep 0.4")
    failed = agentos("spawn", "evil", "--ready", "hello", "--", "sh", "-c", script + "exit 1")

    assert done.stdout == "\\x1b]0;title\\x07\\x1b[2J\ufffdx\n"
    assert done.stderr == "\\x1b[31m\nagentos: evil runs\n"
    said = ["agentos: evil did not start: exit status 1 before it was ready", "  | \\x1b[31m", "  | agentos: evil runs"]
    assert failed.stderr.splitlines() == said, "no line of its own reads as one of ours"


def test_escape_sequences_do_not_get_through_logs_or_run_either(agentos: Agentos, kernel: Kernel) -> None:
    agentos("spawn", "sly", "--wait", "--", "sh", "-c", r"printf 'a\033[31mb\n'; sleep 0.4")

    assert r"a\x1b[31mb" in agentos("logs", "sly").stdout
    kernel.wait_line(r"sly \| a\\x1b\[31mb")
    assert "\x1b" not in kernel.said


PATIENT = """
import sys
from agentos.userland.cli.agents.spawn import spawn_and_wait
from agentos_sdk import AgentOSClient
with AgentOSClient(sys.argv[1]) as client:
    fields = {"name": "job", "command": sys.argv[2:], "shutdown": 3600, "ready": None, "restart": None}
    sys.exit(spawn_and_wait(client, fields))
"""
"""``agentos spawn --wait`` of an agent that has an hour between SIGTERM and SIGKILL, for which there is no option."""


@contextlib.contextmanager
def waiting(kernel: Kernel, *command: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that waits for the job that it has spawned."""
    with subprocess.Popen(
        command,
        env=environment(kernel.place),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        yield process


@pytest.mark.usefixtures("agentos")
def test_ctrl_c_stops_the_agent(kernel: Kernel, program: str) -> None:
    script = "echo on; while :; do sleep 0.05; done"
    options = ("spawn", "job", "--wait", "--socket", kernel.socket, "--")
    with waiting(kernel, program, *options, "sh", "-c", script) as process, kernel.client() as client:
        process.send_signal(signal.SIGINT)

        _, errors = process.communicate(timeout=PATIENCE)

        assert (process.returncode, errors) == (130, "")
        assert job(client)["state"] == "exited"


@pytest.mark.usefixtures("agentos")
def test_a_second_ctrl_c_hurries(kernel: Kernel, program: str) -> None:
    script = "trap '' TERM; echo on; while :; do sleep 0.05; done"
    with (
        waiting(kernel, program, "-c", PATIENT, kernel.socket, "sh", "-c", script) as process,
        kernel.client() as client,
    ):
        process.send_signal(signal.SIGINT)
        until(lambda: job(client)["state"] == "stopping", "it is being stopped")
        process.send_signal(signal.SIGINT)

        _, errors = process.communicate(timeout=PATIENCE)

        assert (process.returncode, errors) == (130, "")
        assert job(client)["state"] == "exited"


def job(client: AgentOSClient) -> dict[str, object]:
    return [agent for agent in client.list_agents(all=True) if agent["name"] == "job"][-1]


@pytest.mark.usefixtures("agentos")
def test_a_start_that_takes_long_can_be_broken_off(kernel: Kernel, program: str) -> None:
    with (
        subprocess.Popen(
            [program, "spawn", "job", "--wait", "--ready", "hello", "--", "sleep", "1000"],
            env={**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket},
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        AgentOSClient(kernel.socket) as client,
    ):
        until(lambda: [agent for agent in client.list_agents() if agent["pid"]], "it starts")
        pid = job(client)["pid"]
        process.send_signal(signal.SIGINT)

        _, errors = process.communicate(timeout=PATIENCE)

        assert (process.returncode, errors) == (130, "")
        until(lambda: job(client)["state"] == "exited", "its start was withdrawn")
        assert not os.path.exists(f"/proc/{pid}")
