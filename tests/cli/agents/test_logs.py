"""``agentos logs``: of one agent, of several, of earlier runs, and without a kernel; ``agentos run --json``."""

import json
import signal
import subprocess
from datetime import datetime

import pytest

from agentos.userland.cli.agents.logs import format_line
from tests.cli.conftest import Agentos
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment

GIVES_UP = """
[kernel]
socket = "s"
state_dir = "state"

[supervisor]
strategy = "one_for_all"
intensity = 0

[[supervisor.children]]
name = "bad"
command = ["sh", "-c", 'printf "oops \\\\033]0;title\\\\007\\\\n"; sleep 1; exit 3']
"""


def say(agentos: Agentos, name: str, script: str) -> None:
    agentos("spawn", name, "--wait", "--", "sh", "-c", script)


def test_several_agents_are_shown_with_their_names_in_the_order_of_time(agentos: Agentos) -> None:
    for number in range(3):
        say(agentos, f"many{number % 2}", f"echo line {number}")

    shown = agentos("logs", "many0", "many1", "--grep", "^line").stdout.splitlines()

    assert [line.split(maxsplit=1)[1] for line in shown] == [f"many{number % 2} | line {number}" for number in range(3)]
    assert shown[0][9:].startswith("       many0 | ")
    whole = agentos("logs", "-n", "2000").stdout
    assert "many1 | line 1" in whole
    assert "kernel | many1: exit status 0" in whole


def test_lines_are_filtered(agentos: Agentos) -> None:
    say(agentos, "sieve", "echo one; echo two >&2; echo three")

    def texts(*arguments: str) -> list[str]:
        return [line.partition(" | ")[2] for line in agentos("logs", "sieve", *arguments).stdout.splitlines()]

    assert texts("--stream", "stderr") == ["two"]
    assert texts("--grep", "e$", "--stream", "stdout") == ["one", "three"]
    assert texts("--since", "1h", "--stream", "stdout") == ["one", "three"]
    assert texts("--until", "1h") == []
    assert texts("--since", "yesterday", "--until", "today") == []
    assert texts("--since", "1h", "-n", "1", "--stream", "stdout") == ["three"]
    [line] = agentos("logs", "sieve", "--stream", "stderr", "--json").stdout.splitlines()
    assert json.loads(line) | {"at": 0} == {"at": 0, "stream": "stderr", "text": "two"}


def test_since_shows_more_lines_than_one_reply_has(agentos: Agentos) -> None:
    say(agentos, "long", "seq 5000")

    shown = agentos("logs", "long", "--since", "1h", "--stream", "stdout").stdout.splitlines()

    assert [int(line.partition(" | ")[2]) for line in shown] == list(range(1, 5001))


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("nosuch",), 1, "agentos: no agent is called 'nosuch'\n"),
        (("--grep", "("), 1, "agentos: grep: missing ): (\n"),
        (("--since", "blah"), 2, "Error: Invalid value for --since: expected 10m, 1d, yesterday, today, now, 18:00 or"),
        (("--follow", "--last-run"), 2, "Error: --follow and --last-run exclude each other"),
    ],
)
def test_mistakes_are_explained(agentos: Agentos, arguments: tuple[str, ...], status: int, text: str) -> None:
    done = agentos("logs", *arguments)

    assert (done.returncode, text in done.stderr) == (status, True)


def test_a_line_of_another_day_has_its_date() -> None:
    old = {"at": datetime(2026, 1, 31, 18).timestamp(), "stream": "stdout", "text": "x", "name": "web"}
    assert format_line(old, raw=False, named=True) == "2026-01-31 18:00:00          web | x"


def test_following_all_goes_on_with_agents_that_come_later(kernel: Kernel, agentos: Agentos, program: str) -> None:
    say(agentos, "early", "echo marked early")
    command = [program, "logs", "-f", "--grep", "^marked", "--socket", kernel.socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(kernel.place)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("early | marked early\n")
        say(agentos, "late", "echo marked late")
        assert process.stdout.readline().endswith("late | marked late\n")
        process.send_signal(signal.SIGINT)

    assert process.returncode == 130


def test_the_last_run_is_shown_without_a_kernel(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(GIVES_UP)
    assert kernel.wait_end() == 1
    assert "`agentos logs --last-run` shows the log of this run" in kernel.said

    def logs(*arguments: str) -> "subprocess.CompletedProcess[str]":
        env = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}
        return run_agentos(["logs", *arguments], kernel.place, env)

    state = ("--state-dir", str(kernel.state_dir))
    assert "`agentos logs --last-run` shows the log of its last run" in logs().stderr
    shown = logs("--last-run", *state).stdout
    assert "bad | oops \\x1b]0;title\\x07\n" in shown
    assert "last state of bad: failed, restarts: 0, last end: exit status 3" in shown
    only = logs("--last-run", *state, "bad", "--stream", "stdout", "--since", "1h", "--json").stdout.splitlines()
    assert [json.loads(line)["text"] for line in only] == ["oops \x1b]0;title\x07"]
    assert "grep: missing )" in logs("--last-run", *state, "--grep", "(").stderr
    assert logs("--last-run", "--state-dir", str(kernel.place)).returncode == 1


def test_while_a_kernel_runs_the_last_run_is_the_one_before(own_kernel: OwnKernel) -> None:
    kernel = own_kernel('[[supervisor.children]]\nname = "x"\ncommand = ["sh", "-c", "echo $$; sleep 1000"]\n')
    words = ["logs", "--last-run", "--state-dir", str(kernel.state_dir), "kernel", "--grep", "^(ready|stopping)"]

    def last_run() -> "subprocess.CompletedProcess[str]":
        return run_agentos(words, kernel.place, environment(kernel.place))

    assert "there is no log of an earlier run" in last_run().stderr
    kernel.stop()
    kernel.start_again()
    kernel.wait_ready()
    assert [line.partition(" | ")[2][:8] for line in last_run().stdout.splitlines()] == ["ready; n", "stopping"]


def test_run_prints_each_line_as_an_object(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(GIVES_UP)
    kernel.wait_end()
    words = ["run", "--json", "--socket", kernel.socket, "--state-dir", str(kernel.state_dir)]

    done = run_agentos(words, kernel.place, environment(kernel.place))
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    assert (done.returncode, done.stderr) == (1, "")
    assert {"name": "bad", "stream": "stdout", "text": "oops \x1b]0;title\x07"}.items() <= next(
        line for line in lines if line["name"] == "bad"
    ).items()
    assert any(line["text"].startswith("ready, listening") and line["level"] == "info" for line in lines)
    (kernel.place / "agentos.toml").write_text("[kernelx]\n")
    wrong = run_agentos(words, kernel.place, environment(kernel.place))
    assert (wrong.returncode, "kernelx: unknown field" in json.loads(wrong.stdout)["error"]) == (2, True)
