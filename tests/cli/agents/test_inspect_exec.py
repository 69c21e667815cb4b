"""``agentos inspect``, ``agentos exec``, and what ``agentos ps`` says of walls and ends."""

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from agentos.userland.cli.agents.agents import describe_missing
from agentos.userland.cli.agents.inspect import describe_isolation, describe_permissions
from agentos_sdk.opcodes import Op
from tests.cli.conftest import Agentos, Result
from tests.support.commands import run_agentos_bytes
from tests.support.kernel import Kernel, environment, until
from tests.support.wire import PATIENCE

SLEEP = ("--", "sleep", "1000")


def test_inspect_begins_with_what_an_operator_asks(agentos: Agentos) -> None:
    agentos("spawn", "a", "--env", "TOKEN=secret", *SLEEP)

    shown = agentos("inspect", "a", COLUMNS="80")

    assert shown.returncode == 0
    labels = [line.split()[0] for line in shown.stdout.splitlines() if not line.startswith(" ")]
    assert labels[:8] == ["name", "state", "since", "uses", "limits", "budget", "permissions", "isolation"]
    assert re.match(r"name +a \(id \d+\)\nstate +running, pid \d+\n", shown.stdout)
    assert re.search(r"^runs +sleep 1000$", shown.stdout, re.MULTILINE)
    assert re.search(r"^variables +TOKEN$", shown.stdout, re.MULTILINE)
    assert re.search(r"^uses +memory [\d.]+[KM]\b.*pids \d+", shown.stdout, re.MULTILINE)
    assert re.search(r"^permissions +level sandboxed$", shown.stdout, re.MULTILINE)
    assert re.search(r"^isolation +standard: all walls stand; ", shown.stdout, re.MULTILINE)
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "secret" not in shown.stdout


def test_inspect_says_of_which_rules_and_sets_permissions_are() -> None:
    given = {"level": "readonly", "allow": {"calls": ["THINK"], "read": ["/data/**"]}, "deny": {"read": ["/data/x"]}}
    operator, boss = {"name": "operator", "level": "unrestricted"}, {"name": "boss", "level": "standard"}

    assert describe_permissions({"level": "sandboxed", "bounded_by": [operator]}) == "level sandboxed"
    assert describe_permissions({**given, "bounded_by": [boss]}) == "level readonly and 3 rules, within boss"
    assert describe_permissions({"allow": {"calls": ["THINK"]}}) == "1 rule"


def test_inspect_shows_the_layers_on_request(agentos: Agentos) -> None:
    agentos("spawn", "a", *SLEEP)

    assert "LAYER" not in agentos("inspect", "a").stdout
    table = layers_of(agentos("inspect", "--isolation", "a"))

    header, *rows = table
    assert re.split(r"  +", header) == ["LAYER", "ASKED", "ACTIVE", "MECHANISM", "REASON"]
    names = [row.split()[0] for row in rows if not row.startswith(" ")]
    assert (len(names), names[0], names[-1]) == (18, "user_ns", "disk")
    assert any(re.fullmatch("user_ns +yes +yes +clone", row) for row in rows)


@pytest.mark.parametrize("columns", ["80", "100"])
def test_inspect_shows_the_evidence_on_request(agentos: Agentos, columns: str) -> None:
    agentos("spawn", "a", *SLEEP)

    table = layers_of(agentos("inspect", "-v", "a", COLUMNS=columns))

    assert re.match("LAYER .* EVIDENCE, OR REASON$", table[0])
    assert any(re.fullmatch("no_new_privs +yes +yes +prctl +NoNewPrivs: 1", row) for row in table)
    assert max(map(len, table)) <= int(columns)
    assert table[0].index("EVIDENCE") <= int(columns) - 24, "no column of a few characters"


def layers_of(inspected: Result) -> list[str]:
    """The table of the layers, without the directories of control groups below it."""
    lines = inspected.stdout.partition("\n\n")[2].splitlines()
    return [line for line in lines if not line.startswith("cgroup ")]


def test_the_verdict_names_what_is_not_held_and_why() -> None:
    stands = {"asked": True, "active": True, "reason": ""}
    cpu = {"asked": 100000, "active": False, "reason": "no cgroup delegated"}
    landlock = {"asked": True, "active": False, "reason": "this Linux has none"}
    unasked = {"asked": False, "active": False, "reason": "the host's network"}

    whole = {"level": "standard", "layers": {"root": stands, "net_ns": unasked}}
    poor = {"level": "standard", "layers": {"root": stands, "landlock": landlock, "cpu": cpu}}

    assert describe_isolation(whole) == "standard: all walls stand; all limits hold"
    assert describe_isolation(whole | {"layers": {"root": stands, "cpu": cpu}}) == (
        "standard: all walls stand; cpu not limited: no cgroup delegated"
    )
    assert describe_isolation(poor) == (
        "standard: landlock doesn't stand: this Linux has none; cpu not limited: no cgroup delegated"
    )
    assert describe_isolation({"level": "standard", "layers": {}}) == "standard: not started yet"


def test_inspect_says_what_an_agent_without_walls_hasnt_got(agentos: Agentos, kernel: Kernel) -> None:
    with kernel.client() as client:
        client.spawn("bare", command=["sleep", "1000"], sandboxed=False)

    shown = agentos("inspect", "--isolation", "bare").stdout

    assert re.search(r"^isolation +none: no walls$", shown, re.MULTILINE)
    assert re.search(r"^seccomp +no +no +- +the agent's isolation is none$", shown, re.MULTILINE)


def test_inspect_gives_json_and_takes_ids_and_agents_that_have_ended(agentos: Agentos) -> None:
    number = json.loads(agentos("spawn", "--json", "a", *SLEEP).stdout)["id"]
    agentos("kill", "a")

    found = json.loads(agentos("inspect", "--json", str(number)).stdout)

    assert (found["name"], found["state"]) == ("a", "exited")
    assert re.search(r"^ended +stopped: killed by SIGTERM$", agentos("inspect", "a").stdout, re.MULTILINE)


def test_ps_shows_isolation_and_how_agents_ended(agentos: Agentos, kernel: Kernel) -> None:
    with kernel.client() as client:
        client.spawn("bare", command=["sleep", "1000"], sandboxed=False)
    spawned = json.loads(agentos("spawn", "--json", "walled", *SLEEP).stdout)
    agentos("spawn", "gone", *SLEEP)
    agentos("kill", "gone")
    layers = spawned["isolation"]["layers"]
    missing = [name for name, layer in layers.items() if layer["asked"] and not layer["active"]]

    header, *rows = agentos("ps", "-a").stdout.splitlines()

    assert header.split()[-3:] == ["ISOLATION", "SUPERVISOR", "END"]
    isolation = header.split().index("ISOLATION")
    cells = {row.split()[1]: re.split(r"  +", row) for row in rows}
    assert cells["bare"][isolation] == "none"
    assert cells["walled"][isolation] == "standard"
    assert all(any(row.startswith(describe_missing(name)) and "walled" in row for row in rows) for name in missing)
    assert cells["gone"][-1] == "stopped: killed by SIGTERM"
    assert "END" not in agentos("ps").stdout


def test_exec_behaves_like_the_command_itself(agentos: Agentos) -> None:
    agentos("spawn", "a", *SLEEP)

    done = agentos("exec", "a", "--", "sh", "-c", "echo out; echo err >&2; exit 7")

    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert agentos("exec", "a", "hostname").stdout == "a\n"
    assert agentos("exec", "a", "--cwd", "/tmp", "--", "pwd").stdout == "/tmp\n"
    assert agentos("exec", "a", "echo", "--timeout", "-x").stdout == "--timeout -x\n"
    assert agentos("exec", "a", "--", "sh", "-c", "kill -TERM $$").returncode == 143


def test_exec_of_a_program_that_does_not_exist_is_127_as_in_a_shell(agentos: Agentos) -> None:
    agentos("spawn", "a", *SLEEP)

    missing = agentos("exec", "a", "--", "nonesuch")

    assert (missing.returncode, missing.stdout) == (127, "")
    assert missing.stderr == "agentos: nonesuch: not found in the jail's PATH\n"
    assert agentos("exec", "--host", "--", "nonesuch").stderr == "agentos: nonesuch: not found in PATH\n"


def test_exec_gives_the_command_our_input_if_told_to(agentos: Agentos, kernel: Kernel) -> None:
    agentos("spawn", "a", *SLEEP)

    def given(data: bytes, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        words = ["exec", "--socket", kernel.socket, *arguments]
        return run_agentos_bytes(words, kernel.place, environment(kernel.place), data)

    assert given("grün\n".encode(), "-i", "a", "cat").stdout == "grün\n".encode()
    assert given(b"unheard\n", "a", "cat").stdout == b""
    assert given(b"x" * (128 << 10), "--stdin", "a", "--", "wc", "-c").stdout == b"131072\n"
    assert given(b"x" * (1 + (128 << 10)), "-i", "a", "cat").stderr == b"agentos: stdin: expected at most 128 KiB\n"
    assert given(b"\xff", "-i", "a", "cat").stderr == b"agentos: stdin: expected text in UTF-8\n"


def test_the_class_of_an_agent_is_given_and_shown(kernel: Kernel, agentos: Agentos) -> None:
    begun = agentos("spawn", "later", "--class", "batch", "--weight", "2", "--", "sleep", "1000")

    assert begun.returncode == 0, begun.stderr
    assert "class batch, weight 2" in agentos("inspect", "later").stdout


def test_exec_ends_with_124_at_its_timeout(agentos: Agentos) -> None:
    agentos("spawn", "a", *SLEEP)

    late = agentos("exec", "--timeout", "2", "a", "--", "sh", "-c", "echo begun; sleep 100")
    told = agentos("exec", "a", "--timeout", "0.3", "--json", "--", "sleep", "100")

    assert (late.returncode, late.stdout, late.stderr) == (124, "begun\n", "agentos: killed after 2 s\n")
    assert (told.returncode, json.loads(told.stdout)["timed_out"]) == (124, True)


def test_exec_that_is_interrupted_takes_the_command_with_it(agentos: Agentos, kernel: Kernel, program: str) -> None:
    agentos("spawn", "a", *SLEEP)
    command = [program, "exec", "--socket", kernel.socket, "a", "--", "sleep", "7410"]
    mark = ["sleep", "7410"]
    with subprocess.Popen(command, cwd=kernel.place, stdin=subprocess.DEVNULL) as process:
        until(lambda: is_running(mark), "the command runs")

        process.send_signal(signal.SIGINT)

        assert process.wait(PATIENCE) == 130
    until(lambda: not is_running(mark), "the command has ended")


def is_running(argv: list[str]) -> bool:
    """Whether a process of this machine has exactly this command line."""
    wanted = "".join(f"{word}\0" for word in argv).encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path("/proc", name, "cmdline").read_bytes() == wanted:
                return True
    return False


def test_exec_shows_all_of_it_as_it_comes_and_to_programs_what_is_kept(agentos: Agentos) -> None:
    agentos("spawn", "a", *SLEEP)

    done = agentos("exec", "a", "--", "head", "-c", "2M", "/dev/zero")
    kept = json.loads(agentos("exec", "--json", "a", "--", "head", "-c", "2M", "/dev/zero").stdout)

    assert (done.returncode, len(done.stdout), done.stderr) == (0, 2 << 20, "")
    assert (kept["truncated"], len(kept["stdout"])) == (True, 1 << 20)


def test_exec_without_a_name_runs_it_on_the_host(agentos: Agentos, kernel: Kernel) -> None:
    done = agentos("exec", "--host", "--cwd", str(kernel.place), "--", "pwd")

    assert (done.returncode, done.stdout) == (0, f"{kernel.place}\n")
    assert agentos("exec", "--host", "--", "nonesuch").returncode == 127
    line = agentos("exec", "--host", "--", "echo 1")
    assert line.returncode == 127
    assert line.stderr.endswith("; to give a line to a shell: agentos exec ... -- sh -c 'LINE'\n")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("inspect", "nobody"), 1, "agentos: no agent is called 'nobody'\n"),
        (("exec", "nobody", "ls"), 1, "agentos: no agent is called 'nobody'\n"),
        (("exec", "nobody"), 2, None),
        (("inspect",), 2, None),
    ],
)
def test_an_error_is_one_line(agentos: Agentos, arguments: tuple[str, ...], status: int, text: str | None) -> None:
    failed = agentos(*arguments)

    assert (failed.returncode, failed.stdout) == (status, "")
    assert text is None or failed.stderr == text


def test_by_number_they_are_calls_like_others(agentos: Agentos) -> None:
    agentos("spawn", "a", *SLEEP)

    assert json.loads(agentos("call", Op.INSPECT.name, '{"name": "a"}').stdout)["state"] == "running"
    assert json.loads(agentos("call", Op.EXEC.name, '{"name": "a", "command": "echo hi"}').stdout)["stdout"] == "hi\n"
