"""``agentos audit``: the log as people and programs see it, beside a kernel and without one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from agentos.services.audit.chain import Row
from agentos.services.audit.log import open_audit
from agentos.userland.cli.audit.table import Table
from tests.cli.conftest import Agentos, Result
from tests.services.audit.audited import DENIED, change, entry, make
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, shared, until
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE


def audit(state: Path, *arguments: str, **env: str) -> Result:
    place = {**environment(state), **env}
    words = ["audit", *arguments, *(["--state-dir", str(state)] if "--state-dir" not in arguments else [])]
    return run_agentos(words, state, place)


def printed(state: Path, *arguments: str) -> list[str]:
    done = audit(state, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def entries(state: Path, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed(state, *arguments, "--json")]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a kernel that has ended: 1 its start, 2 to 6 what was done, 7 its end."""
    state = tmp_path_factory.mktemp("state")

    async def main() -> None:
        async with open_audit(state / "audit", "1.0") as audit:
            number = await audit.intend(entry("/workspace/a.txt"))
            audit.note(entry("/workspace/a.txt", phase="outcome", outcome="ok", duration=0.0123, intent=number))
            audit.note(DENIED)
            audit.note(entry("x", agent=8, name="other", call="THINK", phase="outcome", outcome="busy", duration=2.0))
            await audit.intend(entry("\x1b[2J\x1b]0;owned\x07 \u202e" + "long " * 99, name="n\x1b[31m" + "x" * 99))

    trio.run(main)
    return state


def test_the_latest_entries_are_a_table(state: Path) -> None:
    today = f"{datetime.now():%A, %d %B %Y}"

    header, day, *rows = printed(state)

    assert header.split() == ["ENTRY", "TIME", "CALLER", "CALL", "RESULT", "ABOUT"]
    assert day == today
    assert [" ".join(row.split()[:1] + row.split()[2:]) for row in rows[:5]] == [
        "1 kernel KERNEL_START ok agentos 1.0",
        "2 worker WRITE intended /workspace/a.txt",
        "3 worker WRITE ok 12.3ms /workspace/a.txt",
        "4 worker READ denied /etc/shadow [default: credentials]",
        "5 other THINK busy 2.0s x",
    ]
    assert rows[-1].split()[2:] == ["kernel", "KERNEL_STOP", "ok"]


def test_no_line_is_longer_than_a_terminal_and_none_can_command_it(state: Path) -> None:
    for columns in ("60", "80", "100", "300"):
        lines = audit(state, COLUMNS=columns).stdout.splitlines()
        assert max(map(len, lines)) == max(80, int(columns))
        assert all(line.isprintable() for line in lines)
        assert r"\x1b[2J\x1b]0;owned" in lines[-2]


def test_entries_are_chosen_by_agent_call_decision_and_time(state: Path) -> None:
    def chosen(*arguments: str) -> list[int]:
        return [each["id"] for each in entries(state, *arguments)]

    assert chosen() == [1, 2, 3, 4, 5, 6, 7]
    assert chosen("--agent", "worker") == [2, 3, 4]
    assert chosen("--agent", "8") == [5]
    assert chosen("--call", "read", "--call", "THINK") == [4, 5]
    assert chosen("--decision", "deny") == [4]
    assert chosen("-n", "2") == [6, 7]
    assert chosen("--since", "1h", "--agent", "8") == [5]
    assert chosen("--since", "00:00:00", "-n", "1") == [7]


def test_where_nothing_is_found_it_is_said_out_of_how_many(state: Path) -> None:
    def said(*arguments: str) -> str:
        done = audit(state, *arguments)
        assert (done.returncode, done.stdout) == (0, "")
        return done.stderr

    assert said("--agent", "nobdy") == "agentos: no caller named 'nobdy' is in the log\n"
    assert said("export", "--agent", "99") == "agentos: no caller with the id 99 is in the log\n"
    none = f"agentos: no entry matches (of 7, since {datetime.now():%Y-%m-%d} "
    assert said("--agent", "worker", "--decision", "ask").startswith(none)
    assert said("--call", "kill", "--json").startswith(none)
    assert said("--since", f"{datetime.now().year + 1}-01-01").startswith(none)


def test_columns_that_become_too_narrow_are_made_wider_under_a_header_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As when more is followed."""
    rest = ("/workspace/in.txt", "allow", "", "outcome")
    narrow = Row(1, 0.0, 7, "worker", "agent", "READ", *rest, "ok", 0.004, None, 1, 1, "")
    failed = narrow._replace(outcome="isolation_unavailable")
    slow = narrow._replace(call="METRICS_ALL_AGENTS")
    show = Table()
    for rows in ([narrow], [], [narrow], [slow, failed], [narrow]):
        show([row.wire_fields for row in rows])

    lines = [line for line in capsys.readouterr().out.splitlines() if "1970" not in line]

    assert [line.split()[0] for line in lines] == ["ENTRY", "1", "1", "ENTRY", "1", "1", "1"]
    assert [line.index("/workspace/in.txt") for line in lines if "/" in line] == [47, 47, 70, 70, 70]
    assert "  METRICS_ALL_AGENTS  ok 4.0ms  " in lines[4]
    assert "  isolation_unavailable  /" in lines[5]


def test_programs_get_every_field(state: Path) -> None:
    [denied] = entries(state, "--decision", "deny")

    assert 0 < time.time() - denied.pop("at") < 600
    assert len(denied.pop("hash")) == 64
    assert denied == {
        "id": 4, "agent_id": 7, "name": "worker", "kind": "agent", "call": "READ", "about": "/etc/shadow",
        "decision": "deny", "rule": "default: credentials", "phase": "outcome", "outcome": "permission_denied",
        "duration": None, "intent": None, "repeated": 1, "together": denied["together"],
    }  # fmt: skip


def test_all_of_it_can_be_exported(tmp_path: Path) -> None:
    make(tmp_path / "audit", 300, segment_size=32 << 10)

    everything = [json.loads(line) for line in printed(tmp_path, "export")]

    assert [each["id"] for each in everything] == list(range(1, 303))
    assert [json.loads(line) for line in printed(tmp_path, "export", "--call", "KERNEL_STOP")] == everything[-1:]


def test_a_sound_log_is_said_to_be_with_what_to_keep_elsewhere(state: Path) -> None:
    first, second = printed(state, "verify")

    assert first == "sound: 7 entries, 1 to 7, in 1 segment"
    assert second == f"head 7 {entries(state, '-n', '1')[0]['hash']}"
    assert printed(state, "verify", "--head", second.split()[2])[0] == first
    assert entries(state, "verify")[0]["sound"]


def test_a_log_that_was_tampered_with_is_said_to_be_and_where(tmp_path: Path) -> None:
    make(tmp_path / "audit", 5)
    head = printed(tmp_path, "verify")[-1].split()[2]
    change(tmp_path / "audit", "UPDATE entries SET about = 'nothing' WHERE seq = 3")

    done = audit(tmp_path, "verify", "--head", "0" * 64)

    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "not as it was written:",
        "  entry 3: it or an entry before it was changed: its hash doesn't match",
        f"  no entry has the hash {'0' * 64}: the log was cut or rewritten since then",
        f"head 7 {head}",
    ]
    report = json.loads(audit(tmp_path, "verify", "--json").stdout)
    assert (report["sound"], [fault["entry"] for fault in report["faults"]]) == (False, [3])


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--state-dir", "/nonexistent"), 1, "agentos: there is no audit log in /nonexistent: a kernel makes one"),
        (("verify", "--head", "abc"), 2, "Error: Invalid value for --head: expected 64 hexadecimal digits"),
        (("--since", "soon"), 2, "Error: Invalid value for --since: expected 10m, 1d, yesterday, today, now, 18:00 or"),
        (("--call", "HELO"), 2, "Error: Invalid value for --call: no call is named 'HELO', did you mean HELLO?"),
        (("--since", "1d", "summary"), 2, "Error: write --since behind summary"),
        (("--agent", "worker", "verify"), 2, "Error: verify takes no --agent"),
        (("-n", "3", "export"), 2, "Error: export takes no --tail"),
    ],
)
def test_what_can_not_be_done_is_one_sentence(state: Path, arguments: tuple[str, ...], status: int, told: str) -> None:
    done = audit(state, *arguments)

    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.splitlines()[-1].startswith(told)


def test_a_log_that_is_no_database_is_named(tmp_path: Path) -> None:
    make(tmp_path / "audit", 1)
    (tmp_path / "audit" / "000001.db").write_text("Dear diary, " * 1000)

    done = audit(tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"agentos: {tmp_path}/audit: file is not a database: `agentos audit verify` tells")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_is_told_that_only_its_owner_may_read_the_log(entered: Path) -> None:
    make(entered / "audit", 1)
    script = (  # the interpreter may be where only root can start it
        "import difflib, os; from agentos.userland.cli import main; from agentos.userland.cli.audit import audit;"
        "import agentos.services.audit.query;"
        "os.setuid(65534); main.cli()"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, "audit", "--state-dir", str(entered)],
        cwd="/", capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"agentos: {entered}/audit: only root may read it\n"


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(None) as kernel:
        yield kernel


def test_a_running_kernels_log_can_be_read_and_verified_and_nothing_is_left_in_its_directory(
    agentos: Agentos, kernel: Kernel
) -> None:
    state = ["--state-dir", str(kernel.state_dir)]
    with kernel.client() as client:
        assert client.spawn("w", command=["sleep", "1000"], isolation="none")["success"]
    before = sorted(os.listdir(kernel.state_dir / "audit"))

    rows = [json.loads(line) for line in agentos("audit", "--json", "--call", "SPAWN", *state).stdout.splitlines()]
    verified = agentos("audit", "verify", *state)

    assert rows[0]["phase"] == "intent"
    assert rows[0]["kind"] == "operator"
    assert "w" in rows[0]["about"]
    assert verified.stdout.startswith("sound: ")
    assert sorted(os.listdir(kernel.state_dir / "audit")) == before


def test_what_comes_is_followed(kernel: Kernel, program: str) -> None:
    command = [program, "audit", "--follow", "--json", "--call", "SPAWN", "-n", "1"]
    command += ["--state-dir", str(kernel.state_dir)]
    with kernel.client() as client:
        assert client.spawn("first", command=["sleep", "1000"], isolation="none")["success"]
        until(lambda: len(entries(kernel.state_dir, "--call", "SPAWN")) % 2 == 0, "the outcome is written")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            before = json.loads(follower.stdout.readline())
            assert client.spawn("second", command=["sleep", "1000"], isolation="none")["success"]
            intent, outcome = (json.loads(follower.stdout.readline()) for _ in range(2))
            follower.send_signal(signal.SIGINT)
            assert follower.wait(PATIENCE) == 130

    assert before["phase"] == "outcome"
    assert (intent["phase"], outcome["phase"], outcome["outcome"]) == ("intent", "outcome", "ok")
    assert outcome["intent"] == intent["id"] > before["id"]


@each_row("command", [["audit"], ["audit", "export"], ["audit", "verify"], ["audit", "summary", "worker"], ["--help"]])
def test_a_full_disk_under_the_output_is_not_blamed_on_the_log(state: Path, program: str, command: list[str]) -> None:
    where = [] if command == ["--help"] else ["--state-dir", str(state)]
    with open("/dev/full", "w") as full:
        words = [program, *command, *where]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)

    assert (done.returncode, done.stderr) == (1, "agentos: the output: No space left on device\n")
