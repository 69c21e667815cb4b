"""A program without walls: started and ended by the same handle, and nothing said to protect that doesn't."""
# A file in /proc or /tmp keeps nobody waiting here.
# ruff: file-ignore[ASYNC240]

import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from agentos.sandbox.errors import StepFailed
from agentos.sandbox.plan import plan_unjailed
from agentos.sandbox.policy import Limits, Program
from agentos.sandbox.report import probe, walls
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.status import Status
from agentos.sandbox.steps import Step
from tests.sandbox import jail
from tests.sandbox.jail import Belongings, kill, line, run, start_spawner
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

FOREVER = "import time; print('here', flush=True); time.sleep(600)"
PATH = {"PATH": "/usr/bin:/bin"}
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    """A running spawner, on whatever host: no walls, nothing that it must be able to do."""
    spawner = start_spawner()
    yield spawner
    spawner.close()


@pytest.fixture
def subreaper() -> Iterator[None]:
    """What programs leave behind becomes a child of ours, as it does with a kernel."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def a_plan(*argv: str, env: dict[str, str] | None = None, cwd: str = "/", **limits: int) -> tuple[Step, ...]:
    return plan_unjailed(Program(argv, PATH if env is None else env, cwd), probe.read_host(), Limits(**limits))


def python(code: str) -> tuple[Step, ...]:
    return a_plan(sys.executable, "-I", "-S", "-c", code)


async def test_a_program_runs_and_its_status_and_output_come_back(spawner: Spawner) -> None:
    ended = await run(spawner, a_plan("sh", "-c", "echo $0; echo err >&2; exit 3", "hello"))

    assert ended == jail.Ended(Status(3, None), "hello\n", "err\n")


async def test_the_signal_that_ended_a_program_comes_back(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(a_plan("sleep", "1000"))
    sandbox.signal(signal.SIGTERM)

    ended = await jail.ended(sandbox)

    assert (ended.status, str(ended.status)) == (Status(None, signal.SIGTERM), "killed by SIGTERM")


async def test_an_exit_status_above_128_is_no_signal(spawner: Spawner) -> None:
    assert (await run(spawner, a_plan("sh", "-c", "exit 137"))).status == Status(137, None)


async def test_it_is_a_child_of_ours_with_the_hosts_namespaces_root_and_user(spawner: Spawner) -> None:
    code = """
import os
print(os.getppid(), os.getuid(), os.getsid(0) == os.getpgrp() == os.getpid(), os.getcwd())
print(*(os.readlink(f'/proc/self/ns/{name}') for name in sorted(os.listdir('/proc/self/ns'))))
print(os.stat('/').st_ino, os.stat('/').st_dev)
"""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        ended = await run(spawner, a_plan(sys.executable, "-I", "-S", "-c", code, cwd=place))

    who, namespaces, root = ended.out.splitlines()
    assert who == f"{os.getpid()} {os.getuid()} True {place}"
    assert namespaces.split() == [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))]
    assert root == f"{os.stat('/').st_ino} {os.stat('/').st_dev}"


async def test_its_environment_is_what_it_was_given_and_no_more(spawner: Spawner) -> None:
    assert (await run(spawner, a_plan("/usr/bin/env", env={"MINE": "yes"}))).out == "MINE=yes\n"


async def test_it_inherits_three_descriptors_and_the_first_reads_nothing(spawner: Spawner) -> None:
    ended = await run(spawner, a_plan("sh", "-c", "cat; ls -l /proc/$$/fd"))

    links = {row.split()[-3]: row.split()[-1] for row in ended.out.splitlines() if "->" in row}
    assert links["0"] == "/dev/null"
    assert set(links) == {"0", "1", "2"}


async def test_no_signal_is_ignored_or_blocked_though_our_own_starter_wanted_it(spawner: Spawner) -> None:
    code = """
import os, trio
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.hosts.test_bare import a_plan, run
async def main(spawner):
    print((await run(spawner, a_plan('cat', '/proc/self/status'))).out)
trio.run(main, Spawner.start())
"""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        process = await trio.run_process([sys.executable, "-c", code], capture_stdout=True, cwd=Path.cwd())
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    found = {
        row.split(":")[0]: int(row.split()[1], 16)
        for row in process.stdout.decode().split("\n")
        if row[:3] == "Sig" and row[3] in "BIC"
    }
    kept_by_libc = 1 << 31 | 1 << 32
    assert found["SigBlk"] == found["SigCgt"] == 0
    assert found["SigIgn"] & ~kept_by_libc == 0


async def test_its_limits_are_what_was_asked_and_what_it_may_start_is_not_counted(spawner: Spawner) -> None:
    code = "import resource as r; print(*(r.getrlimit(x) for x in (r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CORE)))"
    processes = f"import resource; print(resource.getrlimit({resource.RLIMIT_NPROC}))"
    argv = (sys.executable, "-I", "-S", "-c")

    ended = await run(spawner, a_plan(*argv, code, open_files=99, file_size=12345))

    assert ended.out == "(99, 99) (12345, 12345) (0, 0)\n"
    assert (await run(spawner, a_plan(*argv, processes))).out == f"{resource.getrlimit(resource.RLIMIT_NPROC)}\n"


async def test_no_wall_is_said_to_stand_and_the_limits_are(spawner: Spawner) -> None:
    steps = a_plan("sleep", "1000", open_files=99)
    sandbox = await spawner.spawn(steps)

    layers = walls.isolation_layers(steps, sandbox.observed)

    assert list(layers) == [name for name in walls.LAYERS if name not in ("memory", "pids", "cpu", "disk")]
    limits = layers.pop("rlimits")
    assert (limits.asked, limits.active, limits.evidence) == (True, True, "NOFILE=99 FSIZE=268435456 CORE=0")
    for layer in layers.values():
        assert (layer.asked, layer.active, layer.mechanism) == (False, False, "")
        assert layer.reason == "the agent's isolation is none"
    own = os.stat("/proc/self/ns/net").st_ino
    assert layers["net_ns"].evidence == f"net:[{own}], ours is net:[{own}]"
    await kill(sandbox)


@pytest.mark.parametrize(
    ("steps", "text", "number"),
    [
        (a_plan("/no/such"), "Execute /no/such: /no/such: No such file or directory", errno.ENOENT),
        (a_plan("no-such"), "Execute no-such: .*No such file or directory", errno.ENOENT),
        (a_plan("/etc/passwd"), "Execute /etc/passwd: /etc/passwd: Permission denied", errno.EACCES),
        (a_plan("true", cwd="/no/such"), "Execute true: /no/such: No such file or directory", errno.ENOENT),
    ],
)
async def test_what_cannot_be_run_is_said(spawner: Spawner, steps: tuple[Step, ...], text: str, number: int) -> None:
    before = Belongings.now()

    with pytest.raises(StepFailed, match=text) as failure:
        await spawner.spawn(steps)

    assert failure.value.errno == number
    assert Belongings.now() == before


async def test_a_signal_reaches_its_whole_process_group(spawner: Spawner) -> None:
    code = """
import os, signal, time
child = os.fork()
if child:
    signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'heard '))
    os.write(1, b'ready ')
    print(os.waitpid(child, 0)[1])
else:
    time.sleep(600)
"""
    sandbox = await spawner.spawn(python(code))
    assert await line(sandbox) == "ready "

    sandbox.signal(signal.SIGTERM)

    with trio.fail_after(PATIENCE):
        assert sorted((await jail.ended(sandbox)).out.split()) == ["15", "heard"]


async def test_kill_ends_its_process_group(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python("import os, time; os.fork(); os.write(1, b'+'); time.sleep(600)"))
    seen = ""
    while seen != "++":
        seen += await line(sandbox)

    with trio.fail_after(PATIENCE):  # the pipe's end comes when the last of them has ended
        await sandbox.kill()
        assert (await jail.ended(sandbox)).status == Status(None, signal.SIGKILL)


async def test_what_is_left_of_its_group_ends_with_the_program(spawner: Spawner) -> None:
    code = "import os, time; os.fork() or time.sleep(600)"

    with trio.fail_after(PATIENCE):
        assert (await run(spawner, python(code))).status == Status(0, None)


async def test_kill_is_not_interrupted_and_may_come_again(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python(FOREVER))
    with trio.CancelScope() as scope:
        scope.cancel()
        await sandbox.kill()

    assert sandbox.status == Status(None, signal.SIGKILL)
    sandbox.signal(signal.SIGTERM)  # to nobody
    await kill(sandbox)


async def test_a_frozen_program_stands_still_until_it_is_thawed(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python("import os; os.fork(); os.write(1, b'+')\nwhile True: pass"))
    seen = ""
    while seen != "++":
        seen += await line(sandbox)
    children = Path(f"/proc/{sandbox.pid}/task/{sandbox.pid}/children").read_text().split()
    stats = [Path(f"/proc/{pid}/stat") for pid in (sandbox.pid, *children)]

    def states() -> set[str]:
        return {stat.read_text().rsplit(")", 1)[1].split()[0] for stat in stats}

    sandbox.freeze()

    assert len(stats) == 2
    with trio.fail_after(PATIENCE):
        while states() != {"T"}:
            await trio.sleep(0.01)
        sandbox.thaw()
        while states() != {"R"}:
            await trio.sleep(0.01)
    await kill(sandbox)


async def test_a_dead_zygote_takes_no_bare_process_with_it(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python(FOREVER))
    await line(sandbox)

    os.kill(spawner.zygote.pid, signal.SIGKILL)

    assert (await run(spawner, a_plan("echo", "again"))).out == "again\n"
    assert sandbox.status is None
    assert Path(f"/proc/{sandbox.pid}").exists()
    await kill(sandbox)


async def test_killing_the_process_that_started_it_ends_it(spawner: Spawner) -> None:
    code = f"""
import trio
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.hosts.test_bare import line, python
async def main(spawner):
    sandbox = await spawner.spawn(python({FOREVER!r}))
    await line(sandbox)
    print(sandbox.pid, flush=True)
    await trio.sleep_forever()
trio.run(main, Spawner.start())
"""
    process = await trio.lowlevel.open_process([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with trio.fail_after(PATIENCE):
        pidfd = os.pidfd_open(int(await process.stdout.receive_some()))

        process.kill()
        await jail.gone([pidfd])
        await process.wait()


async def test_what_programs_leave_to_us_is_reaped_and_our_own_is_not(spawner: Spawner, subreaper: None) -> None:
    code = """
import os
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    os.execl('/bin/sleep', 'sleep', '1000')
os.wait()
"""
    sandbox = await spawner.spawn(python(code))
    orphan = int(await line(sandbox))
    pidfd = os.pidfd_open(orphan)
    sandbox.signal(signal.SIGKILL)
    while Path(f"/proc/{sandbox.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
        await trio.sleep(0.01)
    os.kill(orphan, signal.SIGKILL)
    await trio.lowlevel.wait_readable(pidfd)
    os.close(pidfd)

    first = await spawner.reap_orphans()  # whether the orphan comes before the program is the host's affair
    await kill(sandbox)

    assert sandbox.status == Status(None, signal.SIGKILL)
    assert not first
    assert await spawner.reap_orphans()
    assert not Path(f"/proc/{orphan}").exists()


async def test_a_zygote_that_died_unnoticed_hides_no_stranger(spawner: Spawner, subreaper: None) -> None:
    former = spawner.zygote.pid
    pidfd = os.pidfd_open(former)
    os.kill(former, signal.SIGKILL)
    await jail.gone([pidfd])

    assert await spawner.reap_orphans()

    assert not Path(f"/proc/{former}").exists()
    assert (await run(spawner, a_plan("echo", "again"))).out == "again\n"


async def test_a_wake_up_that_is_meant_for_another_file_ends_no_program(spawner: Spawner) -> None:
    """While another process has a closed file open too, epoll goes on telling of it, by its number."""
    sandbox = await spawner.spawn(a_plan("sleep", "1000"))
    read, write = os.pipe()
    holder = await trio.lowlevel.open_process(["sleep", "1000"], pass_fds=(read,))
    with trio.move_on_after(0.1):
        await trio.lowlevel.wait_readable(read)
    os.close(write)  # now the pipe has something to tell
    os.dup2(sandbox.pidfd, read)  # and its number belongs to another file
    os.close(sandbox.pidfd)
    sandbox.pidfd = read

    with trio.move_on_after(0.3) as patience:
        await sandbox.wait()

    holder.kill()
    await holder.wait()
    assert patience.cancelled_caught
    assert sandbox.status is None
    await kill(sandbox)


async def test_many_of_them_leave_nothing(spawner: Spawner) -> None:
    steps = a_plan("sleep", "1000")
    await kill(await spawner.spawn(steps))
    before = Belongings.now()

    for _ in range(rounds(5)):
        await kill(await spawner.spawn(steps))

    assert Belongings.now() == before


async def test_it_has_the_hosts_network(spawner: Spawner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))"

        assert (await run(spawner, python(code))).status == Status(0, None)
