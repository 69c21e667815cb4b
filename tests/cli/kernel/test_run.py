"""``agentos run`` and ``check``."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Agentos
from tests.conftest import OwnKernel
from tests.support import fork_server
from tests.support.commands import run_agentos, run_crippled
from tests.support.kernel import Kernel, environment, listens, until
from tests.support.runs.forked import Commands
from tests.support.wire import PATIENCE

READY = b"ready, listening"
BROKEN = """[kernel]
log_level = "loud"
[[supervisor.children]]
name = "a"
script = "missing.py"
restart = "permnent"
colour = "red"
[[supervisor.children]]
name = "a"
command = ["true"]
"""


def test_check_says_every_mistake_with_its_line(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "broken.toml").write_text(BROKEN)

    checked = agentos("check", "broken.toml")

    assert (checked.returncode, checked.stdout) == (1, "")
    places = [line.split(": ")[0:2] for line in checked.stderr.splitlines()]
    assert places == [
        ["broken.toml:2", "kernel.log_level"],
        ["broken.toml:5", "supervisor.children[0].script"],
        ["broken.toml:6", "supervisor.children[0].restart"],
        ["broken.toml:7", "supervisor.children[0].colour"],
        ["broken.toml:9", "supervisor.children[1].name"],
    ]
    assert "expected permanent, transient or temporary, got 'permnent'" in checked.stderr


def test_check_says_which_agents_would_not_start_for_what_is_missing(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "lacking.toml").write_text(
        '[[supervisor.children]]\nname = "a"\ncommand = ["true"]\n'
        '[[supervisor.children]]\nname = "b"\ncommand = ["/agent/run"]\ncode = "none"\nworkspace = "nowhere"\n'
        '[mcp.servers.c]\nscript = "none.py"\n'
    )

    checked = agentos("check", "lacking.toml")

    assert (checked.returncode, checked.stdout) == (1, "")
    child = "supervisor.children[1]"
    assert checked.stderr.splitlines() == [
        f"lacking.toml:7: {child}.code: expected a directory, got '{kernel.place}/none'",
        f"lacking.toml:8: {child}.workspace: expected tmp, keep or a directory, got '{kernel.place}/nowhere'",
        f"lacking.toml:10: mcp.servers.c.script: there is no file {kernel.place}/none.py",
        "lacking.toml: 2 agents under 1 supervisor; all but b, mcp.c would start",
    ]


def test_check_counts_what_is_fine(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "fine.toml").write_text('[[supervisor.children]]\nname = "a"\ncommand = ["true"]\n')

    assert agentos("check", "fine.toml").stdout == "fine.toml: fine: 1 agent under 1 supervisor\n"


NEEDY = """[[supervisor.children]]
name = "all"
command = ["true"]
isolation = "strict"
[[supervisor.children]]
name = "share"
command = ["true"]
[supervisor.children.limits]
cpu_quota = "10%"
[[supervisor.children]]
name = "bare"
command = ["true"]
isolation = "none"
[supervisor.children.limits]
cpu_quota = "10%"
open_files = 64
[[supervisor.children]]
name = "modest"
command = ["true"]
[supervisor.children.limits]
memory = "64M"
max_pids = 8
"""


def test_check_says_which_agents_would_not_start_on_a_host_without_groups(tmp_path: Path) -> None:
    (tmp_path / "needy.toml").write_text(NEEDY)
    (tmp_path / "waived.toml").write_text(f'[kernel]\nwaive = ["cpu_quota"]\n{NEEDY}')

    def check(file: str) -> "subprocess.CompletedProcess[bytes]":
        return run_crippled(["--hide", "/sys/fs/cgroup"], ["check", file], tmp_path, os.environ)

    needy, waived = check(f"{tmp_path}/needy.toml"), check(f"{tmp_path}/waived.toml")

    assert (needy.returncode, waived.returncode) == (0, 0), needy.stderr + waived.stderr
    fine, *notes = needy.stdout.decode().splitlines()
    assert fine == f"{tmp_path}/needy.toml: fine: 4 agents under 1 supervisor"
    assert [note.partition(" would not start: ")[0] for note in notes] == [
        f"on this host {name}" for name in ("all", "share", "bare")
    ]
    assert all('waive = ["cpu_quota"]' in note for note in notes[1:])
    assert [note.split()[3] for note in waived.stdout.decode().splitlines()[1:]] == ["all"], "strict knows no waiver"


def test_check_says_of_the_same_agents_that_the_kernel_refuses(kernel: Kernel, agentos: Agentos) -> None:
    """On this host, whatever it can do: with what a kernel that started them would say."""
    (kernel.place / "needy.toml").write_text(NEEDY)
    done = agentos("check", "needy.toml")
    noted = {name for line in done.stdout.splitlines()[1:] for name in line.split(" would ")[0][13:].split(", ")}

    asked: dict[str, dict[str, Any]] = {
        "all": {"isolation": "strict"},
        "share": {"limits": {"cpu_quota": "10%"}},
        "bare": {"isolation": "none", "limits": {"cpu_quota": "10%", "open_files": 64}},
        "modest": {"limits": {"memory": "64M", "max_pids": 8}},
    }
    refused = set()
    with kernel.client() as client:
        for name, more in asked.items():
            reply = client.spawn(name, command=["sleep", "1000"], **more)
            if reply.get("code") == "isolation_unavailable":
                refused.add(name)
            else:
                client.kill(name, grace=0)

    assert noted == refused


def test_run_refuses_a_broken_file_with_status_2(agentos: Agentos, kernel: Kernel, tmp_path: Path) -> None:
    (kernel.place / "broken.toml").write_text(BROKEN)

    done = agentos("run", "broken.toml", "--state-dir", str(tmp_path / "x"), "--socket", str(kernel.place / "x.s"))

    assert done.returncode == 2
    assert done.stderr == agentos("check", "broken.toml").stderr
    assert not os.path.exists(tmp_path / "x")


@pytest.mark.parametrize("where", ["no/such/dir/s", "x" * 110])
def test_run_says_in_one_line_why_it_cannot_listen(agentos: Agentos, kernel: Kernel, where: str) -> None:
    done = agentos("run", "--state-dir", str(kernel.place / "x"), AGENTOS_SOCKET=str(kernel.place / where))

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"agentos: {kernel.place}/{where}: ")


def test_run_says_in_one_line_that_a_state_directory_is_none(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "file").write_text("")

    done = agentos("run", "--state-dir", str(kernel.place / "file"), AGENTOS_SOCKET=str(kernel.place / "x.s"))

    assert done.returncode == 1
    assert done.stderr == (f"agentos: {kernel.place}/file: File exists: choose another directory with --state-dir\n")


def test_relative_paths_in_a_file_are_the_files(kernel: Kernel) -> None:
    (kernel.place / "conf").mkdir()
    (kernel.place / "conf" / "a.py").write_text("import os, time\nprint(os.getcwd())\ntime.sleep(1000)\n")
    (kernel.place / "conf" / "t.toml").write_text(
        '[kernel]\nsocket = "sock"\nstate_dir = "st"\n'
        '[[supervisor.children]]\nname = "a"\nscript = "a.py"\nsandboxed = false\nrequired = true\n'
    )
    words = ["run", "conf/t.toml"]
    process = fork_server.shared().start_kernel(words, str(kernel.place), environment(kernel.place))
    assert process.stdout is not None
    with process.stdout:
        seen = ""
        for line in process.stdout:
            seen += line
            if "ready, listening on" in line:
                process.terminate()

    assert f"a | {kernel.place}/conf\n" in seen, seen
    assert process.wait(PATIENCE) == 0
    assert (kernel.place / "conf" / "st").is_dir()


def test_a_reader_that_goes_away_stops_no_kernel_and_brings_no_traceback(
    kernel: Kernel, tmp_path: Path, program: str
) -> None:
    command = [program, "run", "--socket", f"{kernel.place}/p", "--state-dir", f"{kernel.place}/p.d"]
    with (
        open(tmp_path / "errors", "w+") as errors,
        subprocess.Popen(
            command, cwd=kernel.place, env=environment(kernel.place), stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        assert process.stdout is not None
        process.stdout.close()
        until(lambda: listens(f"{kernel.place}/p"), "it is up")
        words = ["spawn", "a", "--socket", f"{kernel.place}/p", "--", "sh", "-c", "yes"]
        client = run_agentos(words, kernel.place, environment(kernel.place))
        assert client.returncode == 0, client.stderr
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)

        assert (tmp_path / "errors").read_text() == ""
        assert process.returncode == 0


@pytest.mark.usefixtures("kernels")
def test_a_kernel_is_started_by_a_path_with_dots_in_it(tmp_path: Path) -> None:
    """As from a directory beside the environment: ``../venv/bin/python -m agentos run``."""
    (tmp_path / "a.py").write_text("print('running')\n")
    (tmp_path / "t.toml").write_text(
        '[supervisor]\nauto_shutdown = "any_significant"\n'
        '[[supervisor.children]]\nname = "a"\nscript = "a.py"\nrestart = "temporary"\nsignificant = true\n'
    )

    done = subprocess.run(
        [os.path.relpath(sys.executable, tmp_path), "-m", "agentos", "run", "t.toml", "--socket", "s"],
        cwd=tmp_path,
        env=environment(tmp_path) | {"XDG_RUNTIME_DIR": "/tmp"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert "a | running\n" in done.stdout, done.stderr


def test_a_closed_pipe_is_no_error(kernel: Kernel, agentos: Agentos, tmp_path: Path) -> None:
    agentos("spawn", "talker", "--wait", "--", "sh", "-c", "seq 1 2000")
    commands = ["ps", "tree", "logs -n 2000 talker", "ps --json", "--help", "logs -f talker"]
    lines = [f"agentos {command} | {reader}" for command in commands for reader in ("head -1", "true")]
    lines += [f"{sys.executable} -m agentos logs -n 2000 talker | true"]  # whose end is the interpreter's own

    with closing(Commands(tmp_path)) as forked:
        given = {**environment(kernel.place), "AGENTOS_SOCKET": kernel.socket}
        env = {**given, "PATH": f"{forked.directory}:{given['PATH']}"}
        for line in lines:
            done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=PATIENCE)

            assert done.stderr == "", line


def test_a_terminal_without_the_letters_gets_their_numbers(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(
        '[[supervisor.children]]\nname = "a"\ncommand = ["sh", "-c", "echo ü; sleep 1000"]\n',
        {"PYTHONIOENCODING": "ascii"},
    )

    kernel.wait_line(r"a \| \\xfc")


FULL_COLLECTIONS = """\
import gc
gc.callbacks.append(lambda phase, info: phase == "stop" and info["generation"] == 2 and print("collected", flush=True))
"""


def test_a_kernel_collects_no_garbage_before_it_runs(own_kernel: OwnKernel, tmp_path: Path) -> None:
    """With 200 agents a full collection holds up the event loop for 0.1 s."""
    (tmp_path / "sitecustomize.py").write_text(FULL_COLLECTIONS)

    kernel = own_kernel(None, {"PYTHONPATH": str(tmp_path)})

    assert kernel.lines.count("collected") == 0


def test_a_kernel_whose_zygote_is_too_slow_says_what_to_set(agentos: Agentos, kernel: Kernel) -> None:
    """On a host where nothing starts within a millisecond."""
    (kernel.place / "slow.toml").write_text('[kernel]\nzygote_timeout = "1ms"\n')

    done = agentos("run", "slow.toml", "--state-dir", str(kernel.place / "x"), "--socket", str(kernel.place / "x.s"))

    assert done.returncode == 1
    said = (
        "the zygote, which starts all agents, was not ready within 0.001 s: on a slow host set a longer zygote_timeout"
    )
    assert said in done.stderr
    assert "exit status" not in done.stderr


@pytest.mark.usefixtures("kernels")
def test_watch_needs_a_file(agentos: Agentos, tmp_path: Path) -> None:
    refused = agentos("run", "--watch", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state"))

    assert (refused.returncode, refused.stderr.startswith("agentos: --watch needs a configuration file")) == (1, True)


@pytest.mark.usefixtures("kernels")
def test_what_follows_a_ctrl_c_begins_a_line(tmp_path: Path) -> None:
    words = ["run", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state")]
    fd, its = pty.openpty()
    kernel = fork_server.shared().fork(words, str(tmp_path), environment(tmp_path), [its] * 3)
    os.close(its)
    shown = b""
    with os.fdopen(fd, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # EIO at its end
        while data := terminal.read(1 << 16):
            was_ready = READY in shown
            shown += data
            if READY in shown and not was_ready:
                os.write(fd, b"\x03")
    assert kernel.wait(PATIENCE) == 0

    assert b"^C" in shown
    [line] = (line for line in shown.decode().splitlines() if "stopping, agents first" in line)
    assert re.match(r"[0-9:]{8} ", line), line
