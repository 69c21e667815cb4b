"""Without a standard stream, or a home directory, a command works or fails in a line."""

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentos.userland.cli.main import cli
from agentos.userland.directories import NoHome, config_home, home, state_home
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row

ROOT = str(Path(__file__).parents[2])
CLOSED = [  # each stream, alone and with the others, and each kind of output
    ("ps", "<&-"),
    ("ps --json", ">&-"),
    ("logs --help", ">&- 2>&-"),
    ("send none x", "2>&-"),
    ("send none x", "<&- >&- 2>&-"),
]


@each_row("command, closed", CLOSED)
def test_a_closed_stream_is_no_traceback(kernel: Kernel, command: str, closed: str) -> None:
    words = [sys.executable, "-m", "agentos", *command.split()]
    environment = {"AGENTOS_SOCKET": kernel.socket, "PATH": "/usr/bin:/bin"}
    whole = run_agentos(command.split(), Path.cwd(), environment)

    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words], env=environment, capture_output=True, text=True
    )

    assert done.returncode == whole.returncode
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else whole.stdout)
    assert done.stderr == ("" if "2>&-" in closed else whole.stderr)


@pytest.mark.parametrize(
    "command", [["agentos", "mcp", "install", "claude-desktop", "--print"], ["demos.permissions"]], ids=" ".join
)
def test_a_full_disk_behind_stdout_is_named_in_a_line(command: list[str], tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}

    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONPATH": ROOT},
            text=True,
        )

    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].endswith("the output: No space left on device")
    assert "Traceback" not in done.stderr


def test_what_is_opened_later_does_not_get_the_number_of_a_closed_stream() -> None:
    opens = "open_closed_streams(); print(open('/dev/zero').fileno(), file=open(3, 'w'))"
    program = f"from agentos.__main__ import open_closed_streams; {opens}"
    shell = ["sh", "-c", 'exec "$@" 3>&1 <&- >&- 2>&-', "sh"]

    done = subprocess.run([*shell, sys.executable, "-c", program], capture_output=True, text=True)

    assert int(done.stdout) > 3


@pytest.mark.parametrize(
    ("find", "variable", "below"),
    [(state_home, "XDG_STATE_HOME", ".local/state"), (config_home, "XDG_CONFIG_HOME", ".config")],
)
def test_a_user_without_a_home_is_told_what_to_set(
    find: Callable[[], Path], variable: str, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv(variable, raising=False)

    with pytest.raises(NoHome, match=rf"uid \d+ has no home directory here: set HOME or {variable}"):
        find()
    with pytest.raises(NoHome, match="set HOME"):
        home()
    monkeypatch.setenv(variable, "/x")
    assert find() == Path("/x")
    monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", "/y")
    assert find() == Path("/y", below)


@pytest.mark.parametrize("command", [["recordings", "ls"], ["storage"], ["doctor"]], ids=" ".join)
def test_a_command_says_in_a_line_that_there_is_no_home(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(cli, command)

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"agentos: uid {os.getuid()} has no home directory here: set HOME or XDG_STATE_HOME\n"


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback() -> None:
    code = """
import sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "agentos.userland.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from agentos.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (130, "")
