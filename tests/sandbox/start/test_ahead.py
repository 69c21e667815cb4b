# A file in /proc keeps nobody waiting here.
# ruff: file-ignore[ASYNC240]

"""A jail that is built ahead is as new as any other to the program that gets it, and gone if it is of no use."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
import trio.testing

import agentos.sandbox.builder
from agentos.agents.jail import filtered_network
from agentos.sandbox import steps as s
from agentos.sandbox.cgroups.discover import Group, discover_here, open_root
from agentos.sandbox.cgroups.values import Limits
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.plan import plan_entry, plan_unjailed
from agentos.sandbox.policy import Limits as PolicyLimits
from agentos.sandbox.policy import Policy, Program
from agentos.sandbox.report import probe, walls
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start import ahead
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from tests.sandbox.jail import (
    PYTHON,
    SDK,
    Belongings,
    a_plan,
    becomes,
    child_of,
    ended,
    kill,
    line,
    python,
    run,
    start_spawner,
    zygote_closes,
)
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

FOREVER = "import time; print('here', flush=True); time.sleep(600)"
OPENING = s.DetachSource | s.OpenSource
NAMESPACES = ("user", "pid", "mnt", "net", "uts", "ipc", "cgroup")


OTHERS: set[int] = set()


@pytest.fixture
def spawner(spawner: Spawner) -> Iterator[Spawner]:
    """A spawner of the test's own, without waiting jails; at the end all of its processes must have been ended."""
    OTHERS.clear()
    OTHERS.update(children())
    own = start_spawner()
    try:
        yield own
    finally:
        own.close()
    assert children() == set()


def children() -> set[int]:
    """Of this process, but for those that serve other tests: the module's spawner, what forks kernels, and a guest."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in found} - OTHERS


async def belongings(spawner: Spawner) -> Belongings:
    """With the mount table, which is opened for the first jail, and without a waiting jail."""
    await build(spawner)
    await spawner.builder._kill_all(spawner.builder._waiting.take_all())
    await becomes(children, {spawner.zygote.pid})
    await trio.testing.wait_all_tasks_blocked()
    return Belongings.now()


async def build(spawner: Spawner, plan: Sequence[Step] | None = None) -> int:
    """Build a jail ahead; returns its pid."""
    before = children()
    await spawner.builder.build(plan or python(FOREVER))
    (pid,) = children() - before
    return pid


async def wait_for_end(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    await trio.lowlevel.wait_readable(pidfd)
    os.close(pidfd)


async def test_the_next_program_gets_it(spawner: Spawner) -> None:
    pid = await build(spawner)

    sandbox = await spawner.spawn(python(FOREVER))

    assert sandbox.pid == pid
    assert await line(sandbox) == "here\n"
    await kill(sandbox)


async def test_without_one_a_program_gets_a_jail_of_its_own(spawner: Spawner) -> None:
    assert (await run(spawner, a_plan("/bin/echo", "new"))).out == "new\n"


async def test_it_fits_another_agent_with_other_limits_and_files(spawner: Spawner) -> None:
    with TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o755)
        Path(place, "main.py").write_text("print('hello')")
        pid = await build(spawner)
        limits = PolicyLimits(tmp=4 << 20, open_files=100)

        sandbox = await spawner.spawn(
            a_plan("/bin/sh", "-c", "echo $(ls /agent) $(ulimit -n); df /tmp", code=place, limits=limits)
        )

        assert sandbox.pid == pid
        assert (await line(sandbox)).startswith("main.py 100\n")
        await kill(sandbox)


@pytest.mark.parametrize("profile", ["standard", "strict"])
async def test_its_layers_and_files_are_those_of_one_built_on_demand(spawner: Spawner, profile: str) -> None:
    code = """
import os, sys
print(sorted((row.split()[4:6], row.split(' - ')[1].split()[0]) for row in open('/proc/self/mountinfo')))
for top in ('/', '/dev', '/etc', '/run', '/tmp', '/workspace', '/agent', '/proc/self/ns'):
    for name in sorted(os.listdir(top)):
        found = os.lstat(os.path.join(top, name))
        print(top, name, found.st_mode, found.st_uid, found.st_gid)
print(*(row for row in open('/proc/self/status') if row[:3] in ('Uid', 'Gid', 'Gro', 'Cap', 'NoN', 'Sec', 'Sig')))
print(open('/proc/self/limits').read(), open('/proc/self/oom_score_adj').read(), os.sched_getscheduler(0))
print(open('/proc/1/oom_score_adj').read(), os.sched_getscheduler(1), os.getpriority(os.PRIO_PROCESS, 0))
print(os.listdir('/proc/self/fd'), os.environ, os.getcwd(), os.uname().nodename, flush=True)
import time; time.sleep(600)
"""
    plan = python(code, profile=profile)
    on_demand = await spawner.spawn(plan)
    pid = await build(spawner, plan)
    one = await spawner.spawn(plan)

    assert one.pid == pid
    assert await output(one) == await output(on_demand)
    layers = [re.sub(r"\[\d+\]", "", str(walls.isolation_layers(plan, each.observed))) for each in (one, on_demand)]
    assert layers[0] == layers[1]
    await kill(one)
    await kill(on_demand)


async def output(sandbox: Sandbox) -> str:
    """All that the program prints, up to its environment."""
    text = ""
    while "environ(" not in text:
        text += await line(sandbox)
    return text


async def test_no_namespace_is_used_twice(spawner: Spawner) -> None:
    sandboxes = []
    for _ in range(3):
        await build(spawner)
        sandboxes.append(await spawner.spawn(python(FOREVER)))
    sandboxes.append(await spawner.spawn(python(FOREVER)))

    for name in NAMESPACES:
        inodes = {os.fstat(one.namespaces[name]).st_ino for one in sandboxes if name in one.namespaces}
        assert len(inodes) == (len(sandboxes) if name in sandboxes[0].namespaces else 0)
        assert os.stat(f"/proc/self/ns/{name}").st_ino not in inodes
    for sandbox in sandboxes:
        await kill(sandbox)


async def test_a_program_with_the_hosts_network_is_another(spawner: Spawner) -> None:
    pid = await build(spawner)

    sandbox = await spawner.spawn(python(FOREVER, network="host"))
    assert sandbox.pid != pid
    await kill(sandbox)

    sandbox = await spawner.spawn(python(FOREVER))
    assert sandbox.pid == pid
    await kill(sandbox)


@pytest.mark.parametrize("profile", ["standard", "strict"])
async def test_one_with_a_filtered_network_is_built_ahead_with_its_route(spawner: Spawner, profile: str) -> None:
    code = """
import socket
for port in (80, 443):
    with socket.create_connection(('198.18.7.9', port), 5) as one: print(one.getpeername()[1], end=' ')
print(open('/etc/resolv.conf').read())
"""
    pid = await build(spawner, python(code, network="filtered", profile=profile))

    sandbox = await spawner.spawn(
        python(code, network="filtered", profile=profile, sockets=filtered_network.addresses((5432,)))
    )

    assert sandbox.pid == pid
    assert (await ended(sandbox)).out == "80 443 nameserver 127.0.0.1\n\n"
    for one in sandbox.sockets:
        one.close()


async def test_only_a_few_wait_and_the_newest_are_kept(spawner: Spawner) -> None:
    before = children()
    pids = [await build(spawner) for _ in range(ahead.MAX_WAITING + 2)]

    assert children() - before == set(pids[-ahead.MAX_WAITING :])


async def test_a_burst_uses_each_once(spawner: Spawner) -> None:
    waiting = [await build(spawner) for _ in range(ahead.MAX_WAITING)]
    sandboxes = []

    async def spawn() -> None:
        sandboxes.append(await spawner.spawn(python(FOREVER)))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(spawn)

    assert len({sandbox.pid for sandbox in sandboxes}) == 8
    assert {sandbox.pid for sandbox in sandboxes} >= set(waiting)
    for sandbox in sandboxes:
        assert await line(sandbox) == "here\n"
        await kill(sandbox)


async def test_a_program_without_walls_gets_a_process_that_was_cloned_ahead(spawner: Spawner) -> None:
    plan = plan_unjailed(Program(("sleep", "600"), {"PATH": "/usr/bin:/bin"}, "/"), probe.read_host(), PolicyLimits())
    pid = await build(spawner, plan)

    sandbox = await spawner.spawn(plan)

    assert sandbox.pid == pid
    await kill(sandbox)


async def test_a_command_enters_a_jail_by_a_process_that_was_cloned_ahead(spawner: Spawner) -> None:
    agent = await spawner.spawn(python(FOREVER))
    assert await line(agent) == "here\n"
    policy = Policy(interpreter=PYTHON, sdk=SDK)
    plan = plan_entry(policy, Program(("/bin/sh", "-c", "id -u; ls /proc"), {}, "/"), probe.read_host())
    pid = await build(spawner, plan)

    entered = await spawner.enter(agent, plan)

    assert (await line(entered)).startswith("1000\n")
    await becomes(lambda: pid in children(), False)  # it has made the command's processes, and ended
    await kill(entered)
    await kill(agent)


async def test_one_bare_process_waits_beside_the_jails(spawner: Spawner) -> None:
    before = children()
    bare = plan_unjailed(Program(("true",), {}, "/"), probe.read_host(), PolicyLimits())
    jails = [await build(spawner) for _ in range(ahead.MAX_WAITING)]
    pids = [await build(spawner, bare) for _ in range(2)]

    assert children() - before == {*jails, pids[-1]}


async def test_two_that_are_built_at_a_time_both_wait(spawner: Spawner) -> None:
    before = await belongings(spawner)
    await build(spawner)  # to be ended while the next one is built, as there is room for two

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spawner.builder.build, python(FOREVER))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(spawner.builder.build, python(FOREVER))

    assert len(spawner.builder._waiting.jails) == ahead.MAX_WAITING
    await spawner.builder._kill_all(spawner.builder._waiting.take_all())
    await becomes(Belongings.now, before)
    assert await spawner.reap_orphans()


async def test_one_that_was_begun_before_the_mounts_changed_does_not_wait(spawner: Spawner) -> None:
    before = await belongings(spawner)
    os.kill(spawner.zygote.pid, signal.SIGSTOP)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spawner.builder.build, python(FOREVER))
        await trio.testing.wait_all_tasks_blocked()
        assert spawner.builder._waiting.take_stale() == []
        os.kill(spawner.zygote.pid, signal.SIGCONT)

    assert spawner.builder._waiting.jails == []
    assert Belongings.now() == before


async def test_linux_kills_it_first_when_memory_runs_out(spawner: Spawner) -> None:
    init = await build(spawner)

    await becomes(lambda: Path(f"/proc/{child_of(init) or 'self'}/oom_score_adj").read_text(), "1000\n")
    program = child_of(init)
    os.kill(program, signal.SIGKILL)

    with trio.fail_after(PATIENCE):
        await wait_for_end(init)
    assert (await run(spawner, a_plan("/bin/echo", "new"))).out == "new\n"


@pytest.mark.parametrize("waits", [True, False], ids=["ahead", "on demand"])
@pytest.mark.parametrize("profile", ["standard", "strict"])
async def test_pid_1_has_the_walls_of_the_program(spawner: Spawner, profile: str, waits: bool) -> None:
    plan = python(FOREVER, profile=profile)
    if waits:
        await build(spawner, plan)

    sandbox = await spawner.spawn(plan)

    assert await line(sandbox) == "here\n"
    assert sandbox.program != sandbox.pid
    assert walls_of(sandbox.pid) == walls_of(sandbox.program)
    await kill(sandbox)


def walls_of(pid: int) -> Sequence[object]:
    """What the host sees of the walls that PID 1 and its program have in common, some of it only with root."""
    place = Path(f"/proc/{pid}")
    kept = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp")
    status = [row for row in (place / "status").read_text().splitlines() if row.startswith(kept)]
    assert len(status) == 11, status
    files = [(place / name).read_text() for name in ("oom_score_adj", "limits")]
    seen = [*status, *files, os.sched_getscheduler(pid)]
    if os.geteuid() == 0:
        namespaces = [os.stat(place / "ns" / name).st_ino for name in NAMESPACES if name != "cgroup"]
        seen += [*namespaces, (place / "mountinfo").read_text()]
    return seen


async def test_none_waits_when_memory_is_short(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = await build(spawner)
    monkeypatch.setattr(ahead, "MIN_AVAILABLE", 1.1)
    before = children()

    await spawner.builder.build(python(FOREVER))

    assert pid not in children() <= before
    assert (await run(spawner, a_plan("/bin/echo", "new"))).out == "new\n"


@contextlib.contextmanager
def without_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no number is free below
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_none_is_built(spawner: Spawner) -> None:
    before, plan = Belongings.now(), python(FOREVER)

    with without_descriptors():
        await spawner.builder.build(plan)

    assert Belongings.now() == before
    await build(spawner)


async def test_without_descriptors_none_waits(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentos.sandbox.builder, "MEMORY_PERIOD", 0.01)
    pid = await build(spawner)
    pidfd = os.pidfd_open(pid)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spawner.builder.serve)
        await trio.testing.wait_all_tasks_blocked()
        with without_descriptors():
            await trio.lowlevel.wait_readable(pidfd)
        nursery.cancel_scope.cancel()
    os.close(pidfd)

    await build(spawner)


async def test_a_directory_that_has_been_replaced_is_shown_as_it_is_now(spawner: Spawner) -> None:
    with TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        os.chmod(place, 0o755)
        file = Path(place, "agentos.py")  # the same one in both, as only the directory is replaced
        file.touch()
        for name in ("agentos_sdk", "other"):
            Path(place, name, "in_sandbox").mkdir(parents=True)
            for own in ("agentos.py", "agentic.py"):
                os.link(file, Path(place, name, "in_sandbox", own))
            Path(place, name, "file").write_text(name)
        sdk = Path(place, "agentos_sdk")
        plan = a_plan("/bin/cat", "/sdk/agentos_sdk/file", sdk=str(sdk))
        await build(spawner, plan)
        sdk.rename(sdk.with_name("former"))
        Path(place, "other").rename(sdk)

        assert (await run(spawner, plan)).out == "other"


async def test_a_file_that_has_been_replaced_is_shown_as_it_is_now(spawner: Spawner) -> None:
    with TemporaryDirectory(prefix="aos-", dir="/tmp") as place:
        sdk = Path(place, "agentos_sdk")
        os.chmod(place, 0o755)
        sdk.joinpath("in_sandbox").mkdir(parents=True)
        file = sdk / "in_sandbox/agentos.py"
        file.write_text("former")
        file.with_name("agentic.py").touch()
        plan = a_plan("/bin/cat", "/sdk/agentos.py", sdk=str(sdk))
        await build(spawner, plan)
        file.unlink()
        file.write_text("present")

        assert (await run(spawner, plan)).out == "present"


async def test_one_that_was_killed_meanwhile_is_waited_for_and_another_is_taken(spawner: Spawner) -> None:
    before = await belongings(spawner)
    pid = await build(spawner)
    os.kill(pid, signal.SIGKILL)
    await wait_for_end(pid)

    assert (await run(spawner, a_plan("/bin/echo", "other"))).out == "other\n"
    await becomes(Belongings.now, before)


async def test_one_that_is_killed_when_it_has_been_taken_is_replaced(spawner: Spawner) -> None:
    before = await belongings(spawner)
    pid = await build(spawner)
    os.kill(pid, signal.SIGSTOP)

    async def kill_it() -> None:
        await trio.testing.wait_all_tasks_blocked()
        await spawner.reap_orphans()  # waits until the process has been sent its plan
        os.kill(pid, signal.SIGKILL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_it)
        assert (await run(spawner, a_plan("/bin/echo", "another"))).out == "another\n"
    await becomes(Belongings.now, before)


async def test_one_that_was_killed_meanwhile_hides_no_stranger(spawner: Spawner) -> None:
    before = await belongings(spawner)
    pid = await build(spawner)
    os.kill(pid, signal.SIGKILL)
    await wait_for_end(pid)

    assert await spawner.reap_orphans()
    assert Belongings.now() == before


async def test_a_plan_that_cant_be_begun_ahead_is_reported_by_its_spawn_alone(spawner: Spawner) -> None:
    plan = [
        step._replace(path="/absent")
        if isinstance(step, s.DetachSource | s.OpenSource) and step.path == "/usr"
        else step
        for step in python(FOREVER)
    ]
    before = await belongings(spawner)

    await spawner.builder.build(plan)
    await spawner.builder.build(plan)

    with pytest.raises(StepFailed, match="/absent: No such file or directory"):
        await spawner.spawn(plan)
    with trio.fail_after(PATIENCE):
        while Belongings.now() != before:
            await trio.sleep(0.01)
            await spawner.reap_orphans()


async def test_when_the_zygote_has_died_meanwhile_a_program_runs_and_nothing_is_left(spawner: Spawner) -> None:
    before = await belongings(spawner)
    await build(spawner)
    os.kill(spawner.zygote.pid, signal.SIGKILL)

    for text in ("first\n", "second\n"):  # the first may need no zygote
        assert (await run(spawner, a_plan("/bin/echo", text.strip()))).out == text
    assert Belongings.now() == before


async def test_closing_the_spawner_ends_it() -> None:
    before, spawner = Belongings.now(), start_spawner()
    pid = await build(spawner)

    spawner.close()
    await spawner.builder.build(python(FOREVER))

    assert not Path(f"/proc/{pid}").exists()
    assert Belongings.now() == before


async def test_many_leave_nothing(spawner: Spawner) -> None:
    steps = a_plan("/bin/sleep", "600")
    await spawner.builder.build(steps)
    await kill(await spawner.spawn(steps))
    before, zygotes = Belongings.now(), len(os.listdir(f"/proc/{spawner.zygote.pid}/fd"))

    for _ in range(rounds(5)):
        await spawner.builder.build(steps)
        await kill(await spawner.spawn(steps))

    assert Belongings.now() == before
    await zygote_closes(spawner, zygotes)


@pytest.mark.skipif(os.geteuid() != 0, reason="the test makes a mount namespace of its own")
@pytest.mark.parametrize("watched", [False, True])
def test_a_change_of_the_mount_table_ends_it(watched: bool) -> None:
    code = f"""
import os, sys, trio, trio.testing
from agentos.sandbox.inside import libc
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.jail import a_plan, run
from tests.support.runs.rounds import rounds
async def main(spawner):
    plan = a_plan("/bin/cat", "/usr/local/share/file")
    async with trio.open_nursery() as nursery:
        if {watched}:
            nursery.start_soon(spawner.builder.serve)
            await trio.testing.wait_all_tasks_blocked()
        await spawner.builder.build(plan)
        pid = spawner.builder._waiting.jails[0].process.pid
        pidfd = os.pidfd_open(pid)
        libc.mount("none", "/usr/local/share", "tmpfs", 0)
        open("/usr/local/share/file", "w").write("mounted later")
        if {watched}:
            await trio.lowlevel.wait_readable(pidfd)
            while not spawner.builder._waiting.jails:
                await trio.sleep(0.01)
            assert spawner.builder._waiting.jails[0].process.pid != pid
        print(await run(spawner, plan))
        if not {watched}:
            await trio.lowlevel.wait_readable(pidfd)
        nursery.cancel_scope.cancel()
libc.unshare(0x20000)
libc.mount("none", "/", None, 0x4000 | 1 << 18)
spawner = Spawner.start()
trio.run(main, spawner)
spawner.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(SDK).parents[1],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "mounted later" in done.stdout, done.stderr


@pytest.fixture
def group() -> Iterator[Group]:
    """One of this host's, where there are any."""
    made = open_root(discover_here())
    if made.root is None:
        pytest.skip(f"no control groups: {made.missing[0].reason}")
    nested = made.root.create_child("ahead", Limits())
    yield nested
    nested.kill()
    made.root.remove()


@pytest.mark.parametrize("ready", [False, True])
async def test_a_program_is_in_its_groups_with_its_pid_1(spawner: Spawner, group: Group, ready: bool) -> None:
    if ready:
        await spawner.builder.build(python(FOREVER))
    ways = group.open_entry()
    before = Belongings.now()

    sandbox = await spawner.spawn(python(FOREVER), cgroup=ways)

    assert group.processes() == {sandbox.pid, sandbox.program}
    await kill(sandbox)
    if not ready:
        assert Belongings.now() == before
    ways.close()
