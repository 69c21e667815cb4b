"""What may run in a jail: scripts, code directories, commands and interpreters, wherever on the host they lie."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.wire import PATIENCE
from tests.system.agents import lines, up, write, written
from tests.system.jails import said

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root reaches into other users' homes")
SYSTEM_PYTHON = "/usr/bin/python3"
TELLS = """
import json, os, sys
from agentos_sdk import AgentOSClient
with AgentOSClient() as me:
    print(json.dumps([sys.executable, sys.prefix, __file__, me.hello()["success"]]), flush=True)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Somebody's, closed to all others; with root somebody else's."""
    with tempfile.TemporaryDirectory(prefix="aos-home-", dir="/tmp") as directory:
        os.chmod(directory, 0o700)
        yield Path(directory)
        if os.geteuid() == 0:
            os.chown(directory, 0, 0)


def given_away(place: Path) -> None:
    """With root: it belongs to somebody else."""
    if os.geteuid() == 0:
        for directory, names, files in os.walk(place):
            for name in (directory, *(os.path.join(directory, name) for name in (*names, *files))):
                os.chown(name, 65534, 65534, follow_symlinks=False)


def test_a_code_directory_is_all_that_is_in_agent_and_can_be_imported_from(
    kernel: Kernel, client: AgentOSClient, home: Path
) -> None:
    (home / "code" / "package").mkdir(parents=True)
    (home / "code" / "package" / "part.py").write_text("NAME = 'imported'\n")
    (home / "code" / "data.txt").write_text("read")
    (home / "secret").write_text("not yours")
    script = home / "code" / "main.py"
    script.write_text(
        "import json, os, sys\nfrom package.part import NAME\n"
        "try: open(__file__, 'a')\nexcept OSError as error: refused = error.strerror\n"
        "text = open(os.path.join(os.path.dirname(__file__), 'data.txt')).read()\n"
        "print(json.dumps([NAME, text, refused, sorted(os.listdir('/agent')), sys.argv]), flush=True)\n"
        "import time; time.sleep(1000)\n"
    )
    given_away(home)

    up(client.spawn("coded", str(script), code=str(home / "code"), args=["one", "two"]))

    until(lambda: lines(client, "coded", "stdout"), "it tells")
    name, text, refused, listing, argv = json.loads(lines(client, "coded", "stdout")[0])
    assert (name, text, refused) == ("imported", "read", "Read-only file system")
    assert listing == ["data.txt", "main.py", "package"]
    assert argv == ["/agent/main.py", "one", "two"]


def test_a_script_outside_its_code_is_refused(kernel: Kernel, client: AgentOSClient, home: Path) -> None:
    (home / "code").mkdir()
    reply = client.spawn("outside", write(kernel, "outside.py", TELLS), code=str(home / "code"))

    assert (reply["code"], reply["error"].partition(":")[0]) == ("bad_request", "script")


def test_a_script_in_a_closed_home_runs_and_nothing_else_of_that_home_is_seen(
    kernel: Kernel, client: AgentOSClient, home: Path
) -> None:
    script = home / "tells.py"
    script.write_text(TELLS + "import time; time.sleep(1000)\n")
    script.chmod(0o600)
    given_away(home)

    up(client.spawn("homely", str(script)))

    until(lambda: lines(client, "homely", "stdout"), "it tells")
    executable, prefix, file, greeted = json.loads(lines(client, "homely", "stdout")[0])
    assert (file, greeted) == ("/agent/tells.py", True)
    assert (executable, prefix) == (sys.executable, sys.prefix)


@pytest.mark.parametrize("isolation", ["standard", "none"])
def test_the_systems_python_can_be_asked_for(kernel: Kernel, client: AgentOSClient, isolation: str) -> None:
    if not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"no {SYSTEM_PYTHON} here")

    executable, prefix, _, greeted = said(client, kernel, "plain", TELLS, python=SYSTEM_PYTHON, isolation=isolation)

    assert (executable, prefix, greeted) == (SYSTEM_PYTHON, "/usr", True)


def test_a_virtual_environment_under_a_closed_home_has_its_packages(
    kernel: Kernel, client: AgentOSClient, home: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True, timeout=PATIENCE)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (home / "venv" / "lib" / version / "site-packages" / "installed.py").write_text("WHERE = __file__\n")
    (home / "venv" / "bin" / "tool").write_text(f"#!{home}/venv/bin/python\n")
    python = str(home / "venv" / "bin" / "python")
    code = "import installed, json, sys; print(json.dumps([installed.WHERE, sys.prefix]), flush=True)"
    given_away(home)

    found, prefix = said(client, kernel, "venv", code, python=python)

    assert prefix == str(home / "venv")
    assert found.startswith(prefix)


def test_an_interpreter_that_is_none_is_refused_with_its_name(
    kernel: Kernel, client: AgentOSClient, home: Path
) -> None:
    script = write(kernel, "tells.py", TELLS)
    wrapper = home / "python"
    wrapper.write_text('#!/bin/sh\nexec python3 "$@"\n')
    wrapper.chmod(0o755)

    assert "a script that starts an interpreter" in client.spawn("odd", script, python=str(wrapper))["error"]
    assert client.spawn("odd", script, python="/no/such/python")["error"].startswith("python: ")
    true = client.spawn("odd", script, python=shutil.which("true"), ready="hello")
    assert not true["success"]


def test_fast_runs_the_script_without_an_exec(kernel: Kernel, client: AgentOSClient) -> None:
    code = TELLS.replace("sys.executable, sys.prefix", "os.getppid(), sys.argv[1:]")

    parent, argv, file, greeted = said(client, kernel, "swift", code, runtime="fast", args=["a"])

    assert (parent, argv, file, greeted) == (1, ["a"], "/agent/swift.py", True)


def test_fast_is_for_scripts_and_the_kernels_own_interpreter(kernel: Kernel, client: AgentOSClient) -> None:
    assert client.spawn("swift", command=["sleep", "1"], runtime="fast")["error"].startswith("runtime: ")
    script = write(kernel, "swift.py", TELLS)
    if os.path.exists(SYSTEM_PYTHON) and sys.executable != SYSTEM_PYTHON:
        assert client.spawn("swift", script, runtime="fast", python=SYSTEM_PYTHON)["error"].startswith("runtime: ")


def test_a_program_of_the_hosts_is_shown_alone(kernel: Kernel, client: AgentOSClient, home: Path) -> None:
    program = home / "program"
    program.write_text("#!/bin/sh\nls /agent\nexec sleep 1000\n")
    program.chmod(0o700)
    (home / "secret").write_text("not yours")
    given_away(home)

    up(client.spawn("program", command=[str(program)]))

    written(client, "program", "program")
    assert lines(client, "program", "stdout") == ["program"]


def test_a_program_that_is_not_in_the_jail_says_so(client: AgentOSClient) -> None:
    reply = client.spawn("lost", command=["no-such-program-here"])

    assert not reply["success"]
    assert "no-such-program-here" in reply["error"]


def test_its_environment_is_what_was_given_and_nothing_of_the_kernels(kernel: Kernel, client: AgentOSClient) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"

    found = said(client, kernel, "clean", code, env={"GIVEN": "this"})

    assert found["GIVEN"] == "this"
    assert found["AGENTOS_SOCKET"] == "/run/agentos.sock"
    assert found["HOME"] == "/workspace"
    strange = {name for name in found if name in os.environ and found[name] == os.environ[name]}
    assert strange <= {"LANG", "PATH", "LC_CTYPE", "PYTHONDONTWRITEBYTECODE", "TMPDIR"}


@ROOT_ONLY
def test_each_agent_is_another_user_outside_and_none_reaches_the_others_files(
    kernel: Kernel, client: AgentOSClient
) -> None:
    pids = [up(client.spawn(f"user-{number}", command=["sleep", "1000"]))["pid"] for number in range(3)]

    uids = [os.stat(f"/proc/{pid}").st_uid for pid in pids]
    assert len(set(uids)) == 3
    assert min(uids) >= 1610612736


ORIGINAL = """
import os, sys, time
sys.path.insert(0, '../python_sdk')
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'python_sdk'))
from agentos import AgentOSClient, SyscallOp

with AgentOSClient() as client:
    if client.kill(name="nobody"):
        print("a kill that failed counts as one that succeeded", flush=True)
    print(client.echo("Hello!"), client.list_agents()[0]["running"], int(SyscallOp.SPAWN), flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", [{}, {"python": SYSTEM_PYTHON}, {"runtime": "fast"}, {"isolation": "none"}], ids=str)
def test_a_script_of_the_original_finds_its_client_where_it_looks_for_it(
    kernel: Kernel, client: AgentOSClient, how: dict[str, str]
) -> None:
    up(client.spawn("veteran", write(kernel, "veteran.py", ORIGINAL), **how))  # type: ignore[arg-type]

    until(lambda: lines(client, "veteran"), "it says something")
    assert lines(client, "veteran") == ["Hello! True 16"]
