"""What an agent finds when it begins to run, and what it doesn't."""

import json
import os
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, shared, until
from tests.system.agents import info, known, lines, up, write

OTHER_PYTHON = "/usr/bin/python3"
OURS = {"AGENTOS_SOCKET", "AGENTOS_AGENT_NAME", "AGENTOS_AGENT_ID", "AGENTOS_RUN_ID", "AGENTOS_LIFE"}

LOOK_AROUND = """
import json, os, sys, time
print(json.dumps({
    "environment": dict(os.environ),
    "files": {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
              if os.path.exists(f"/proc/self/fd/{name}")},
    "pid": os.getpid(), "session": os.getsid(0), "group": os.getpgid(0), "parent": os.getppid(),
    "path": sys.path, "argv": sys.argv, "file": __file__, "cwd": os.getcwd(),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "user": [os.getuid(), os.getgid()],
    "blocked": [line for line in open("/proc/self/status") if line.startswith("SigBlk")][0].split()[1],
}))
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    with shared(env={"SECRET": "of the kernel", "PYTHONPATH": "/nowhere", "LC_ALL": "C"}) as started:
        yield started


def look_around(kernel: Kernel, client: AgentOSClient, name: str, **more: Any) -> dict[str, Any]:
    up(client.spawn(name, write(kernel, f"look-{name}.py", LOOK_AROUND), **more))
    until(lambda: lines(client, name), "it has looked around")
    found: dict[str, Any] = json.loads(lines(client, name)[0])
    return found


@pytest.fixture(scope="module")
def outside(kernel: Kernel) -> dict[str, Any]:
    """What an agent without a jail finds."""
    with kernel.client() as client:
        more = {"env": {"MINE": "yes", "PATH": "/bin"}, "args": ["--flag", "a b"], "cwd": "/", "sandboxed": False}
        return look_around(kernel, client, "outside", **more)


@pytest.fixture(scope="module")
def inside(kernel: Kernel) -> dict[str, Any]:
    """What an agent in a jail finds."""
    with kernel.client() as client:
        return look_around(kernel, client, "inside", env={"MINE": "yes"}, args=["--flag", "a b"])


def test_the_environment_is_built_and_nothing_of_the_kernels_is_in_it(outside: dict[str, Any]) -> None:
    environment = dict(outside["environment"])
    ours = {name: environment.pop(name) for name in list(environment) if name.startswith("AGENTOS_")}
    assert 0 < int(environment.pop("PYTHONHASHSEED")) < 2**32
    assert environment == {
        "PATH": "/bin",
        "HOME": pwd.getpwuid(os.geteuid()).pw_dir,
        "LANG": "C.UTF-8",
        "MINE": "yes",
    }
    assert set(ours) == OURS
    assert ours["AGENTOS_AGENT_NAME"] == "outside"


def test_in_a_jail_it_has_what_it_needs_there(inside: dict[str, Any], client: AgentOSClient) -> None:
    environment = dict(inside["environment"])
    ours = {name: environment.pop(name) for name in list(environment) if name.startswith("AGENTOS_")}
    assert 0 < int(environment.pop("PYTHONHASHSEED")) < 2**32
    assert environment == {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": "/sdk",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/workspace",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "USER": "agent",
        "LOGNAME": "agent",
        "MINE": "yes",
    }
    assert set(ours) == OURS
    assert (ours["AGENTOS_AGENT_NAME"], ours["AGENTOS_AGENT_ID"]) == ("inside", str(info(client, "inside")["id"]))
    assert ours["AGENTOS_SOCKET"] == "/run/agentos.sock"


def test_the_environment_and_the_directory_it_was_given_may_be_others(kernel: Kernel, client: AgentOSClient) -> None:
    given = {"PATH": "/bin", "HOME": "/tmp", "LANG": "C", "USER": "me"}

    found = look_around(kernel, client, "otherwise", env=given, cwd="/tmp")

    assert {name: found["environment"][name] for name in given} == given
    assert found["cwd"] == "/tmp"


def test_a_filtered_network_is_named_to_the_agent_and_to_commands(kernel: Kernel, client: AgentOSClient) -> None:
    found = look_around(kernel, client, "filtered", network="filtered")["environment"]

    variables = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
    for name in (*variables, *map(str.lower, variables)):
        assert found[name] == "http://127.0.0.1:880"
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1"
    ran = client.exec("cat /etc/resolv.conf; echo $HTTPS_PROXY $no_proxy", name="filtered")
    assert ran["stdout"] == "nameserver 127.0.0.1\nhttp://127.0.0.1:880 localhost,127.0.0.1,::1\n"


def test_it_has_its_standard_streams_and_no_other_file(outside: dict[str, Any], inside: dict[str, Any]) -> None:
    for found in (outside, inside):
        assert found["files"]["0"] == "/dev/null"
        assert sorted(found["files"]) == ["0", "1", "2"]


def test_a_command_has_no_other_file_either(client: AgentOSClient) -> None:
    for name, sandboxed in (("ls", True), ("bare-ls", False)):
        up(client.spawn(name, command=["sh", "-c", "ls /proc/self/fd | wc -l; sleep 1000"], sandboxed=sandboxed))

        until(lambda name=name: lines(client, name), "it has counted")  # type: ignore[misc]
        assert lines(client, name) == ["4"]  # 0, 1, 2 and the directory it reads


def test_it_leads_a_session_and_a_process_group_of_its_own(kernel: Kernel, outside: dict[str, Any]) -> None:
    assert outside["pid"] == outside["session"] == outside["group"]
    assert outside["parent"] == kernel.pid
    assert int(outside["blocked"], 16) == 0


def test_in_a_jail_there_is_no_process_but_the_agent_and_its_pid_1(inside: dict[str, Any]) -> None:
    assert inside["pid"] == inside["session"] == inside["group"]
    assert inside["parent"] == 1
    assert inside["processes"] == [1, inside["pid"]]
    assert int(inside["blocked"], 16) == 0
    assert inside["user"] == [1000, 1000]


def test_a_script_runs_as_its_interpreter_would_run_it(kernel: Kernel, outside: dict[str, Any]) -> None:
    assert outside["path"][0] == str(kernel.place)
    assert outside["file"] == str(kernel.place / "look-outside.py")
    assert outside["argv"] == [outside["file"], "--flag", "a b"]
    assert outside["cwd"] == "/"


def test_a_script_in_a_jail_is_in_agent_and_works_in_workspace(inside: dict[str, Any]) -> None:
    assert inside["path"][:2] == ["/agent", "/sdk"]
    assert inside["file"] == "/agent/look-inside.py"
    assert inside["argv"] == [inside["file"], "--flag", "a b"]
    assert inside["cwd"] == "/workspace"


def test_what_is_beside_a_script_comes_along_as_code(kernel: Kernel, client: AgentOSClient) -> None:
    place = kernel.place / "code"
    place.mkdir()
    (place / "beside.py").write_text("print('imported', flush=True)")
    (place / "main.py").write_text("import beside, time; time.sleep(1000)")

    up(client.spawn("with-code", str(place / "main.py"), code=str(place)))
    alone = client.spawn("without-code", str(place / "main.py"), ready="hello")

    until(lambda: lines(client, "with-code") == ["imported"], "it has imported what is beside it")
    assert alone["stderr"][-1] == "ModuleNotFoundError: No module named 'beside'"


def test_the_socket_is_private_and_in_a_private_directory(outside: dict[str, Any]) -> None:
    found = outside["environment"]
    path = Path(found["AGENTOS_SOCKET"])
    assert path.name == f"{found['AGENTOS_AGENT_ID']}.sock"
    assert path.stat().st_uid == os.geteuid()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(bytes(path)) <= 107


def test_the_socket_of_a_jail_is_for_its_outer_user_alone(
    kernel: Kernel, inside: dict[str, Any], client: AgentOSClient
) -> None:
    agent = inside["environment"]["AGENTOS_AGENT_ID"]
    path = kernel.runtime / f"{agent}.sock"
    outer = os.stat(f"/proc/{known(client, 'inside')}").st_uid
    assert path.stat().st_uid == outer
    assert (outer == os.geteuid()) == (os.geteuid() != 0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_uncaught_error_is_told_from_the_script_on(kernel: Kernel, client: AgentOSClient) -> None:
    script = write(kernel, "boom.py", "def inner():\n    1 / 0\n\ninner()\n")

    for sandboxed, path in ((True, "/agent/boom.py"), (False, script)):
        reply = client.spawn("boom", script, sandboxed=sandboxed, ready="hello")

        assert reply["stderr"][:2] == ["Traceback (most recent call last):", f'  File "{path}", line 4, in <module>']
        assert reply["stderr"][-1] == "ZeroDivisionError: division by zero"
        assert not [line for line in reply["stderr"] if "start.py" in line]


def test_a_script_may_use_everything_that_scripts_use(kernel: Kernel, client: AgentOSClient) -> None:
    text = """
        import concurrent.futures, dataclasses, inspect, multiprocessing, pickle, sys, time

        @dataclasses.dataclass
        class Point:
            x: int

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
            assert "return 2 * x" in inspect.getsource(double)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(double, [1, 2]) == [2, 4]
            print("all of it works")
            time.sleep(1000)
        """
    up(client.spawn("everything", write(kernel, "everything.py", text)))

    until(lambda: "all of it works" in lines(client, "everything"), "it has tried all")


def test_what_a_script_prints_is_seen_line_by_line(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("prints", write(kernel, "prints.py", "import time\nprint('seen')\ntime.sleep(1000)\n")))

    until(lambda: lines(client, "prints") == ["seen"], "the line is seen while it runs")


@pytest.mark.skipif(not os.path.exists(OTHER_PYTHON), reason="there is no other Python here")
def test_another_interpreter_has_the_sdk_though_nothing_is_installed(kernel: Kernel, client: AgentOSClient) -> None:
    text = """
        import sys, time
        import agentos_sdk
        from agentos import AgentOSClient

        with AgentOSClient() as me:
            print(sys.prefix, me.hello()["name"], me.echo("through the kernel"))
        time.sleep(1000)
        """
    up(client.spawn("other", write(kernel, "other.py", text), python=OTHER_PYTHON))

    until(lambda: lines(client, "other"), "it has printed")
    prefix, *rest = lines(client, "other")[0].split()
    assert prefix != sys.prefix
    assert rest == ["other", "through", "the", "kernel"]


def test_the_safe_path_of_python_is_respected(kernel: Kernel, client: AgentOSClient) -> None:
    found = look_around(kernel, client, "safe", env={"PYTHONSAFEPATH": "1"}, sandboxed=False)
    inside = look_around(kernel, client, "safe-inside", env={"PYTHONSAFEPATH": "1"})

    assert str(kernel.place) not in found["path"]
    assert any(entry.endswith("/sdk") for entry in found["path"])
    assert "/agent" not in inside["path"]
    assert "/sdk" in inside["path"]


def test_open_files_are_limited_as_programs_expect(client: AgentOSClient) -> None:
    up(client.spawn("limit", command=["sh", "-c", "ulimit -Sn; sleep 1000"]))

    until(lambda: lines(client, "limit"), "it has looked")
    assert lines(client, "limit") == ["1024"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("file", ["environ", "mem", "maps"])
def test_an_agent_cannot_read_the_kernel(kernel: Kernel, client: AgentOSClient, file: str) -> None:
    tries = f"head -c1 /proc/{kernel.pid}/{file} >/dev/null; sleep 1000"
    up(client.spawn("spy", command=["sh", "-c", tries], sandboxed=False))

    until(lambda: lines(client, "spy"), "it has tried")
    assert "Permission denied" in lines(client, "spy")[0]


@pytest.mark.parametrize("file", ["environ", "mem", "status"])
def test_in_a_jail_there_is_no_kernel_to_be_read(kernel: Kernel, client: AgentOSClient, file: str) -> None:
    tries = f"head -c1 /proc/{kernel.pid}/{file} >/dev/null; sleep 1000"
    up(client.spawn("blind", command=["sh", "-c", tries]))

    until(lambda: lines(client, "blind"), "it has tried")
    assert "No such file or directory" in lines(client, "blind")[0]


def test_the_kernel_cannot_be_dumped(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("any", command=["sleep", "1000"]))

    assert os.stat(f"/proc/{kernel.pid}/environ").st_uid == 0
