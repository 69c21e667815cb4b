"""``agentos events`` and ``agentos state watch``: what they print, in a pipe and on a terminal."""

import contextlib
import json
import select
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from click.testing import CliRunner, Result

from agentos.services.event_log.file import EventFiles
from agentos.services.event_log.ring import EventLog
from agentos.services.events import AgentReady
from agentos.userland.cli.main import cli
from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.conftest import OwnKernel
from tests.support.kernel import Kernel, environment, until
from tests.support.wire import EMIT, PATIENCE, STORE


@contextlib.contextmanager
def following(kernel: Kernel, program: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [program, *arguments, "--socket", kernel.socket]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment(kernel.place)) as process:
        yield process
        process.kill()


def line(process: "subprocess.Popen[str]") -> str:
    """The next line without its time."""
    assert process.stdout is not None
    return process.stdout.readline()[9:].rstrip("\n")


def test_events_of_an_agent_are_lines(kernel: Kernel, agentos: Agentos) -> None:
    number = kernel.spawn("short", ["sh", "-c", "sleep 1; exit 3"])
    with kernel.client() as client:
        client.wait("short")

    shown = agentos("events", "--agent", "short").stdout.splitlines()

    kinds = [each.split()[1] for each in shown]
    assert kinds == ["AGENT_SPAWNED", "AGENT_READY", "AGENT_EXITED"]
    assert shown[-1][9:] == "AGENT_EXITED       short: exit status 3"
    assert agentos("events", "--agent", str(number), "--since", "10m").stdout.splitlines() == shown
    assert "AGENT_STATE" not in agentos("events", "--agent", "short", "--type", "AGENT_*").stdout
    states = agentos("events", "--agent", "short", "--type", "AGENT_STATE").stdout
    assert [each.rpartition(" ")[2] for each in states.splitlines()] == ["starting", "running", "exited"]
    found = [json.loads(each) for each in agentos("events", "--agent", "short", "--json").stdout.splitlines()]
    assert [event["type"] for event in found] == kinds
    assert found[-1]["data"]["reason"] == "exit status 3"


def test_the_last_hundred_are_shown_and_with_a_time_all_from_then_on(kernel: Kernel, agentos: Agentos) -> None:
    with kernel.client() as client:
        for step in range(120):
            client.emit_event("custom.step", step)

    shown = agentos("events", "--type", "custom.step").stdout.splitlines()
    assert [each.rpartition(" ")[2] for each in shown] == [str(step) for step in range(20, 120)]
    assert len(agentos("events", "--type", "custom.step", "--since", "1h").stdout.splitlines()) == 120
    assert agentos("events", "--type", "custom.step", "--since", "2999-01-01").stdout == ""
    last = agentos("events", "--type", "custom.step", "-n", "2").stdout.splitlines()
    assert [each.rpartition(" ")[2] for each in last] == ["118", "119"]
    assert len(agentos("events", "--type", "custom.step", "--since", "1h", "--tail", "7").stdout.splitlines()) == 7


def test_a_range_of_times_and_a_text_select_events(kernel: Kernel, agentos: Agentos) -> None:
    with kernel.client() as client:
        for step in ("one", "two", "three"):
            client.emit_event("custom.range", {"step": step})
    chosen = ("events", "--type", "custom.range")
    times = [json.loads(each)["at"] for each in agentos(*chosen, "--json").stdout.splitlines()]
    middle = datetime.fromtimestamp((times[0] + times[1]) / 2).isoformat(sep=" ")

    before = agentos(*chosen, "--until", middle).stdout.splitlines()
    after = agentos(*chosen, "--since", middle).stdout.splitlines()
    assert [each.rpartition(": ")[2] for each in before] == ['"one"}']
    assert [each.rpartition(": ")[2] for each in after] == ['"two"}', '"three"}']
    found = agentos(*chosen, "--grep", r"step.*\bt[wh]", "--tail", "1").stdout.splitlines()
    assert [each.rpartition(": ")[2] for each in found] == ['"three"}']
    assert json.loads(agentos(*chosen, "--grep", "two", "--json").stdout)["data"] == {"step": "two"}
    assert agentos(*chosen, "--grep", "four").stdout == ""
    wrong = agentos(*chosen, "--grep", "(")
    assert (wrong.returncode, wrong.stderr.startswith("agentos: grep: ")) == (1, True)
    assert "leave out --follow, or --until" in agentos(*chosen, "-f", "--until", "now").stderr


def test_stored_events_are_shown_without_a_kernel(tmp_path: Path) -> None:
    files, log = EventFiles(tmp_path / "events"), EventLog(boot="b0")
    (tmp_path / "events").mkdir(0o700)
    for name in ("old", *(["loud"] * 8), "new"):
        place = log.next
        for number in range(2500 if name == "loud" else 2):
            log.take_event(AgentReady(3, name, number))
        files.append(log.boots[-1], log.list_from(place, 2500), kept=log.list_from(place, 2500))

    def stored(*words: str) -> Result:
        return CliRunner().invoke(cli, ["events", "--stored", "--state-dir", str(tmp_path), *words])

    assert stored("--agent", "old").output.splitlines()[1].endswith("AGENT_READY        old: running (pid 1)")
    assert len(stored().output.splitlines()) == 100
    assert len(stored("--since", "1h").output.splitlines()) == 20_004
    assert stored("--since", "1h", "--type", "AGENT_E*").output == ""
    found = [json.loads(each) for each in stored("--grep", "(old|new): .*pid 0", "--json").output.splitlines()]
    assert [(one["seq"], one["data"]["name"]) for one in found] == [(1, "old"), (20_003, "new")]
    assert "of one run of the kernel" in stored("--agent", "3").output
    assert "leave out --follow" in stored("--follow").output
    none = CliRunner().invoke(cli, ["events", "--stored", "--state-dir", str(tmp_path / "none")]).output
    assert none == f"agentos: {tmp_path}/none/events: No such file or directory; say where with --state-dir\n"
    away = CliRunner().invoke(cli, ["events", "--socket", str(tmp_path / "s")]).output
    assert away.endswith("; `agentos events --stored` shows those on disk\n")


def test_a_text_is_looked_for_in_the_line_as_it_is_shown(kernel: Kernel, agentos: Agentos) -> None:
    number = kernel.spawn("shown")
    with kernel.connect_as(number) as wire:
        assert wire.call(EMIT, {"event_type": "custom.shown", "data": 1})["success"]

    [found] = agentos("events", "--grep", "custom.shown +shown: 1$").stdout.splitlines()

    assert found[9:] == "custom.shown       shown: 1"


def test_states_that_are_not_shown_do_not_count(kernel: Kernel, agentos: Agentos) -> None:
    kernel.spawn("counted", ["sleep", "1"])
    with kernel.client() as client:
        client.wait("counted")

    shown = agentos("events", "--agent", "counted", "--tail", "3").stdout.splitlines()

    assert [each.split()[1] for each in shown] == ["AGENT_SPAWNED", "AGENT_READY", "AGENT_EXITED"]


def test_an_agent_that_never_was_is_an_error_and_one_that_ended_is_not(kernel: Kernel, agentos: Agentos) -> None:
    number = kernel.spawn("gone", ["sleep", "1"])
    with kernel.client() as client:
        client.wait("gone")

    assert agentos("events", "--agent", "gone").returncode == 0
    assert agentos("events", "--agent", "kernel").returncode == 0
    wrong = agentos("events", "--agent", "gone", "--agent", "gon")
    assert (wrong.returncode, wrong.stderr) == (1, "agentos: no agent is called 'gon', did you mean gone?\n")
    assert json.loads(agentos("events", "--agent", str(number + 1000), "--json").stdout)["code"] == "not_found"


def test_following_goes_on_until_it_is_interrupted(kernel: Kernel, program: str) -> None:
    with kernel.client() as client:
        client.emit_event("custom.later", 1)
        with following(kernel, program, "events", "-f", "--type", "custom.later") as process:
            assert line(process).endswith(": 1")
            client.emit_event("custom.other", 2)
            client.emit_event("custom.later", {"n": 3})
            assert line(process).endswith(': {"n": 3}')
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130


def test_the_end_of_the_kernel_is_said(own_kernel: OwnKernel, program: str) -> None:
    kernel = own_kernel()
    with following(kernel, program, "events", "-f") as process:
        assert line(process) == "KERNEL_STARTED     kernel: ready"
        kernel.kill()
        _, errors = process.communicate(timeout=PATIENCE)

        assert errors.startswith(f"agentos: the connection to the kernel at {kernel.socket} broke")
        assert process.returncode == 1
    kernel.start_again()
    kernel.wait_ready()


def test_what_an_agent_emits_moves_no_cursor_and_fits_the_terminal(kernel: Kernel) -> None:
    with kernel.client() as client:
        client.emit_event("custom.evil", "\x1b]0;title\x07\x9b2J\u202e" + "x" * 500)
        client.store("evil\u202e" + "k" * 200, 1)
    terminal = Terminal(kernel, "events", "--type", "custom.evil", "--type", "STATE_CHANGED", "--tail", "2")
    try:
        terminal.wait_for("STATE_CHANGED")
        assert terminal.end() == 0
    finally:
        terminal.close()

    shown = terminal.shown.replace("\r", "").splitlines()
    assert len(shown) == 2
    for each in shown:
        assert len(each) <= 80
        assert each.isprintable()


def test_private_keys_and_custom_events_have_the_name_of_their_agent(kernel: Kernel, agentos: Agentos) -> None:
    number = kernel.spawn("holder")
    with kernel.connect_as(number) as wire:
        assert wire.call(STORE, {"key": "own.plan", "value": 1, "scope": "agent"})["success"]
        assert wire.call(EMIT, {"event_type": "custom.named", "data": {"agent_id": number, "name": "liar"}})["success"]

    [change] = agentos("events", "--agent", "holder", "--type", "STATE_CHANGED").stdout.splitlines()
    [custom] = agentos("events", "--type", "custom.named").stdout.splitlines()

    assert change[9:] == "STATE_CHANGED      own.plan: version 1, scope agent of holder"
    assert custom[9:].startswith("custom.named       holder: {")


def test_a_wrong_type_is_named(agentos: Agentos) -> None:
    wrong = agentos("events", "--type", "AGENT_EXPLODED")
    assert wrong.returncode == 1
    assert "AGENT_EXPLODED" in wrong.stderr
    assert json.loads(agentos("events", "--type", "x", "--json").stdout)["code"] == "bad_request"


def test_changes_of_keys_are_watched_with_their_values(kernel: Kernel, program: str) -> None:
    with kernel.client() as client, following(kernel, program, "state", "watch", "plan") as process:
        assert process.stdout is not None
        out = process.stdout
        until(lambda: client.store("plan.begun", True) and select.select([out], [], [], 0.1)[0], "it watches")
        client.store("other", 1)
        client.store("plan.a", {"step": "\x1b[2J"})
        while not (found := line(process)).startswith("plan.a"):
            assert found == "plan.begun = true" or found.startswith("plan.begun had the version")
        assert found == 'plan.a = {"step": "\\u001b[2J"}'
        client.delete("plan.a")
        assert line(process) == "plan.a is deleted"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
        assert process.returncode == 130
