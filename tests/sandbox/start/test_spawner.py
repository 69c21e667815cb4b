# A file in /proc or /tmp keeps nobody waiting here.
# ruff: file-ignore[ASYNC240]

import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest
import trio

from agentos.sandbox.errors import StepFailed
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.status import Status
from tests.sandbox import jail
from tests.sandbox.jail import Belongings, a_plan, kill, line, python, run, zygote_closes
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

FOREVER = "import time; print('here', flush=True); time.sleep(600)"


async def test_a_program_runs_and_its_status_and_output_come_back(spawner: Spawner) -> None:
    ended = await run(spawner, a_plan("/bin/sh", "-c", "echo out; echo err >&2; exit 3"))

    assert ended == jail.Ended(Status(3, None), "out\n", "err\n")


async def test_the_signal_that_ended_a_program_comes_back(spawner: Spawner) -> None:
    ended = await run(spawner, python("import os; os.abort()"))

    assert ended.status == Status(None, signal.SIGABRT)
    assert str(ended.status) == "killed by SIGABRT"


async def test_an_exit_status_above_128_is_no_signal(spawner: Spawner) -> None:
    assert (await run(spawner, a_plan("/bin/sh", "-c", "exit 137"))).status == Status(137, None)


async def test_the_chosen_interpreter_has_its_packages_and_the_sdk(spawner: Spawner) -> None:
    code = "import sys, trio, agentos_sdk, agentos; print(sys.prefix, agentos.AgentOSClient.__module__)"

    ended = await run(spawner, a_plan(sys.executable, "-c", code))

    assert (ended.err, ended.out) == ("", f"{sys.prefix} agentos_sdk.blocking\n")


async def test_the_environment_has_what_the_plan_says_and_no_more(spawner: Spawner) -> None:
    ended = await run(spawner, a_plan("/usr/bin/env", env={"MINE": "yes"}))

    names = {row.split("=")[0] for row in ended.out.splitlines()}
    assert "MINE=yes" in ended.out
    assert names == {
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "USER",
        "LOGNAME",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONPATH",
        "MINE",
    }


async def test_an_environment_longer_than_a_packet_arrives(spawner: Spawner) -> None:
    env = {f"V{number}": "x" * 100_000 for number in range(10)}

    assert (await run(spawner, a_plan("/bin/sh", "-c", "echo ${#V9}", env=env))).out == "100000\n"


async def test_a_program_starts_in_a_session_of_its_own_with_defaults_for_signals(spawner: Spawner) -> None:
    code = """
import os, signal
print(os.getsid(0) == os.getpid() == os.getpgrp(), os.getppid(), os.readlink('/proc/self/fd/0'))
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.pthread_sigmask(0, ()))
print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn')))
"""
    ended = await run(spawner, a_plan("/bin/sh", "-c", 'exec "$0" -I -S -c "$1"', sys.executable, code))

    assert ended.out.splitlines()[:2] == ["True 1 /dev/null", "True set()"]
    ignored = int(ended.out.splitlines()[2], 16)
    kept_by_libc = (
        1 << 31 | 1 << 32
    )  # signals 32 and 33: whoever started us may ignore them, and nobody can ask for more
    assert ignored & ~kept_by_libc == 0x1001000, "Python's own SIGPIPE and SIGXFSZ"


async def test_its_places_are_there_and_can_be_written_to(spawner: Spawner) -> None:
    code = "import os; [open(p + '/f', 'w').write('x') for p in ('/tmp', '/workspace', '/dev/shm')]; print(os.getcwd())"

    assert (await run(spawner, python(code))).out == "/workspace\n"


async def test_a_script_and_a_directory_of_code_are_shown_alone(spawner: Spawner) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o755)
        script = Path(place, "main.py")
        script.write_text("import os; print(os.listdir('/agent'))")
        Path(place, "other.py").touch()

        alone = await run(spawner, a_plan(sys.executable, "/agent/main.py", script=str(script)))
        together = await run(spawner, a_plan(sys.executable, "/agent/main.py", code=place))

    assert alone.out == "['main.py']\n"
    assert sorted(eval(together.out)) == ["main.py", "other.py"]


async def test_a_workspace_of_the_hosts_keeps_what_is_written(spawner: Spawner) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o777)

        ended = await run(spawner, a_plan("/bin/sh", "-c", "echo kept > file", workspace=place))

        assert ended.err == ""
        assert Path(place, "file").read_text() == "kept\n"


async def test_the_kernels_socket_is_reached_by_both_of_its_names(spawner: Spawner) -> None:
    code = """
import socket
for path in ('/run/agentos.sock', '/tmp/agentos.sock'):
    socket.socket(socket.AF_UNIX).connect(path)
    print('connected')
"""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place, socket.socket(socket.AF_UNIX) as listener:
        os.chmod(place, 0o755)
        path = f"{place}/s"
        listener.bind(path)
        os.chmod(path, 0o666)
        listener.listen()

        assert (await run(spawner, python(code, socket=path))).out == "connected\n" * 2


async def test_loopback_works_where_there_is_no_network(spawner: Spawner) -> None:
    code = """
import socket
server = socket.create_server(('127.0.0.1', 0))
socket.create_connection(server.getsockname()).sendall(b'hello')
print(server.accept()[0].recv(5))
"""
    assert (await run(spawner, python(code))).out == "b'hello'\n"


@pytest.mark.parametrize("profile", ["standard", "strict"])
async def test_python_runs_its_threads_and_children_under_each_profile(spawner: Spawner, profile: str) -> None:
    code = """
import subprocess, sys, threading
thread = threading.Thread(target=print, args=('thread',), kwargs={'flush': True}); thread.start(); thread.join()
subprocess.run([sys.executable, '-I', '-S', '-c', 'print("child")'], check=True)
"""
    ended = await run(spawner, python(code, profile=profile))

    assert (ended.out, ended.err) == ("thread\nchild\n", "")


async def test_sigterm_is_forwarded_and_can_be_handled(spawner: Spawner) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print('ready', flush=True)
time.sleep(600)
"""
    sandbox = await spawner.spawn(python(code))
    assert await line(sandbox) == "ready\n"

    sandbox.signal(signal.SIGTERM)

    assert await sandbox.wait() == Status(7, None)
    await kill(sandbox)


async def test_sigterm_ends_a_program_that_does_nothing_about_it(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python(FOREVER))
    assert await line(sandbox) == "here\n"

    sandbox.signal(signal.SIGTERM)

    assert (await jail.ended(sandbox)).status == Status(None, signal.SIGTERM)


async def test_kill_ends_all_that_a_program_started(spawner: Spawner) -> None:
    code = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
print('started', flush=True)
time.sleep(600)
"""
    sandbox = await spawner.spawn(python(code))
    assert await line(sandbox) == "started\n"

    with trio.fail_after(PATIENCE):  # the pipe's end comes when the last of them has ended
        await sandbox.kill()
        assert (await jail.ended(sandbox)).status == Status(None, signal.SIGKILL)


async def test_several_wait_for_the_same_end(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python(FOREVER))
    seen: list[Status] = []

    async def wait() -> None:
        seen.append(await sandbox.wait())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await kill(sandbox)

    assert seen == [Status(None, signal.SIGKILL)] * 2


async def test_a_frozen_program_stands_still_until_it_is_thawed(spawner: Spawner) -> None:
    code = "import sys\nfor n in range(10**9): sys.stdout.write(f'{n}\\n'); sys.stdout.flush()"
    sandbox = await spawner.spawn(python(code))
    await line(sandbox)

    sandbox.freeze()

    stat = Path(f"/proc/{sandbox.program}/stat")
    with trio.fail_after(PATIENCE):
        while stat.read_text().rsplit(")", 1)[1].split()[0] != "T":
            await trio.sleep(0.01)
        sandbox.thaw()
        while stat.read_text().rsplit(")", 1)[1].split()[0] == "T":
            await trio.sleep(0.01)
    await kill(sandbox)


async def test_orphans_leave_no_zombie_inside(spawner: Spawner) -> None:
    code = """
import os
def fork():
    while True:
        try: return os.fork()
        except BlockingIOError: pass  # those that wait for PID 1 count
for number in range(200):
    child = fork()
    if child == 0:
        if fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
def states():
    for pid in os.listdir('/proc'):
        if pid.isdigit():
            try: yield open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError): pass
while 'Z' in set(states()): pass
print('clean')
"""
    with trio.fail_after(PATIENCE):
        ended = await run(spawner, python(code))
    assert (ended.out, ended.err) == ("clean\n", "")


async def test_the_admitting_function_sees_a_process_before_it_has_done_a_step(spawner: Spawner) -> None:
    seen = []

    def admit(pid: int) -> None:
        seen.append(os.readlink(f"/proc/{pid}/root"))

    sandbox = await spawner.spawn(a_plan("/bin/true"), admit)

    assert (await jail.ended(sandbox)).status == Status(0, None)
    assert seen == ["/"]


async def test_a_process_that_isnt_admitted_never_runs(spawner: Spawner) -> None:
    before = Belongings.now()

    def refuse(pid: int) -> None:
        raise RuntimeError(f"no room for {pid}")

    with pytest.raises(RuntimeError, match="no room"):
        await spawner.spawn(a_plan("/bin/true"), refuse)

    assert Belongings.now() == before


async def test_a_cancelled_spawn_leaves_nothing(spawner: Spawner) -> None:
    before, cancelled = Belongings.now(), 0

    for delay in (0, 0.001, 0.002, 0.005):  # a fast machine is ready sooner than after the last of them
        with trio.move_on_after(delay) as scope:
            await kill(await spawner.spawn(python(FOREVER)))
        cancelled += scope.cancelled_caught

    assert cancelled > 0
    assert Belongings.now() == before


async def test_many_at_once_all_run(spawner: Spawner) -> None:
    outs: list[str] = []

    async def one(number: int) -> None:
        outs.append((await run(spawner, a_plan("/bin/echo", str(number)))).out)

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(one, number)

    assert sorted(map(int, outs)) == list(range(16))


async def test_many_spawns_and_kills_leave_no_descriptor_mount_or_zombie(spawner: Spawner) -> None:
    steps = a_plan("/bin/sleep", "600")
    await kill(await spawner.spawn(steps))
    before, zygotes = Belongings.now(), len(os.listdir(f"/proc/{spawner.zygote.pid}/fd"))

    for _ in range(rounds(5)):
        await kill(await spawner.spawn(steps))

    assert Belongings.now() == before
    await zygote_closes(spawner, zygotes)


async def test_a_program_that_doesnt_exist_is_a_clear_error(spawner: Spawner) -> None:
    with pytest.raises(StepFailed, match="Execute /no/such: /no/such: No such file or directory"):
        await spawner.spawn(a_plan("/no/such"))


async def test_a_directory_that_doesnt_exist_is_a_clear_error(spawner: Spawner) -> None:
    with pytest.raises(StepFailed, match="/elsewhere: No such file or directory"):
        await spawner.spawn(a_plan("/bin/true", cwd="/elsewhere"))


@pytest.mark.skipif(os.geteuid() != 0, reason="PID 1 isn't dumpable: only root may open its files")
async def test_an_end_is_told_although_another_process_still_holds_the_pipe_for_the_last_word(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python("import signal; signal.pause()"))
    place = f"/proc/{sandbox.pid}/fd"
    with trio.fail_after(PATIENCE):
        while len(names := os.listdir(place)) > 1:  # the shim closes all but that pipe
            await trio.lowlevel.checkpoint()
    held = os.open(f"{place}/{names[0]}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        with trio.fail_after(PATIENCE):
            await kill(sandbox)
    finally:
        os.close(held)

    assert sandbox.status == Status(None, 9)
