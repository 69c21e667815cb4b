"""A further program beside a sandboxed one: behind the same walls, and ended with it."""
# A file in /proc or /tmp keeps nobody waiting here.
# ruff: file-ignore[ASYNC230, ASYNC240]

import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from agentos.sandbox import steps as s
from agentos.sandbox.errors import SandboxError, StepFailed
from agentos.sandbox.inside.keeper import list_descendants
from agentos.sandbox.plan import plan_entry, plan_unjailed
from agentos.sandbox.policy import Limits, Policy, Program
from agentos.sandbox.report import probe, walls
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.status import Status
from agentos.sandbox.steps import Step
from tests.sandbox import jail
from tests.sandbox.jail import PYTHON, SDK, Belongings, a_plan, kill, line, python, zygote_closes
from tests.sandbox.test_failing_steps import AFTER_THE_LAST_STEP, BROKEN, NO, Broken, broken
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

FOREVER = "import time; print('here', flush=True); time.sleep(600)"
JOINED = ("user", "cgroup", "uts", "ipc", "net")


def beside(*argv: str, env: dict[str, str] | None = None, cwd: str = "/workspace", **policy: Any) -> tuple[Step, ...]:
    """The steps of a program beside one of ``a_plan``."""
    return plan_entry(
        Policy(**{"interpreter": PYTHON, "sdk": SDK, **policy}), Program(argv, env or {}, cwd), probe.read_host()
    )


def python_beside(code: str, **policy: Any) -> tuple[Step, ...]:
    return beside(sys.executable, "-I", "-S", "-c", code, **policy)


def program_of(entered: Sandbox) -> int:
    """The pid of its program, the only child of its PID 1."""
    (program,) = list_descendants(entered.pid)
    return program


async def an_agent(spawner: Spawner, code: str = FOREVER, **policy: Any) -> Sandbox:
    """One that runs."""
    sandbox = await spawner.spawn(python(code, **policy))
    await line(sandbox)
    return sandbox


async def test_a_program_runs_beside_another_and_its_status_and_output_come_back(spawner: Spawner) -> None:
    agent = await an_agent(spawner)

    ended = await jail.ended(await spawner.enter(agent, beside("/bin/sh", "-c", "echo out; echo err >&2; exit 3")))

    assert ended == jail.Ended(Status(3, None), "out\n", "err\n")
    assert agent.status is None
    await kill(agent)


async def test_it_is_in_the_others_namespaces_and_in_a_pid_namespace_below(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    entered = await spawner.enter(agent, python_beside(FOREVER))

    theirs, its = agent.observed.namespaces, entered.observed.namespaces
    assert {name: its[name] for name in JOINED} == {name: theirs[name] for name in JOINED}
    assert its["pid"] not in (theirs["pid"], os.stat("/proc/self/ns/pid").st_ino)
    assert its["mnt"] not in (theirs["mnt"], os.stat("/proc/self/ns/mnt").st_ino)
    assert its == {name: os.fstat(fd).st_ino for name, fd in entered.namespaces.items()}
    if os.geteuid() == 0:  # others may not look
        seen = {name: os.stat(f"/proc/{program_of(entered)}/ns/{name}").st_ino for name in its}
        assert seen == its
    numbers = next(row for row in Path(f"/proc/{entered.pid}/status").read_text().splitlines() if row[:6] == "NSpid:")
    assert len(numbers.split()) == 1 + 3
    assert numbers.split()[-1] == "1"
    await kill(agent)
    await kill(entered)


async def test_we_are_the_parent_of_its_first_process(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    entered = await spawner.enter(agent, python_beside(FOREVER))

    rows = dict(row.split(":", 1) for row in Path(f"/proc/{entered.pid}/status").read_text().splitlines())

    assert int(rows["PPid"]) == os.getpid()
    await kill(entered)
    await kill(agent)


@pytest.mark.parametrize(
    "argv",
    [
        ("/usr/bin/java", "-version"),
        ("/bin/cat", "/etc/python3/debian_config"),
        ("/bin/cat", "/etc/fonts/fonts.conf"),
        ("/bin/cat", "/etc/mime.types"),
    ],
    ids=["java", "python", "fonts", "types"],
)
async def test_what_the_host_keeps_of_runtimes_in_etc_is_there(spawner: Spawner, argv: Sequence[str]) -> None:
    if missing := [path for path in argv if path.startswith("/") and not Path(path).exists()]:
        pytest.skip(f"this host has no {missing[0]}")

    ended = await jail.run(spawner, jail.a_plan(*argv))

    assert (ended.status.code, bool(ended.out + ended.err)) == (0, True), ended.err


async def test_its_walls_are_as_high_as_the_others(spawner: Spawner) -> None:
    steps = python_beside(FOREVER)
    agent = await an_agent(spawner)
    entered = await spawner.enter(agent, steps)

    for pid in (entered.pid, program_of(entered)):
        status = dict(row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    for field in ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters"):
        assert entered.observed.status[field] == agent.observed.status[field]
    assert entered.observed.limits == agent.observed.limits
    shown, of_the_other = (
        walls.isolation_layers(steps, entered.observed),
        walls.isolation_layers(python(FOREVER), agent.observed),
    )
    assert {name: row.active for name, row in shown.items()} == {name: row.active for name, row in of_the_other.items()}
    await kill(agent)
    await kill(entered)


async def test_its_environment_is_the_explicit_one_and_nothing_is_inherited(spawner: Spawner) -> None:
    code = """
import os
print(sorted(os.environ.items()))
print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], os.readlink('/proc/self/fd/0'), os.getcwd())
print(os.getsid(0) == os.getpid() == os.getpgrp(), os.getppid())
"""
    agent = await an_agent(spawner)

    plain = beside(sys.executable, "-I", "-S", "-c", code, env={"MINE": "yes"}, cwd="/tmp")
    ended = await jail.ended(await spawner.enter(agent, plain))

    execute = plain[-1]
    assert isinstance(execute, s.Execute)
    assert ended.out.splitlines() == [
        str(sorted(execute.environment)),
        "[0, 1, 2] /dev/null /tmp",
        "True 1",
    ]
    assert ("MINE", "yes") in execute.environment
    await kill(agent)


SEARCHED = "mkdir a b; echo > a/prog; printf '#!/bin/sh\necho b' > b/prog; printf '#!/none' > b/lost; chmod +x b/*"


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [
        ("prog", "/tmp/none:/tmp/a/prog:/tmp/a:/tmp/b", "b\n"),
        ("b/prog", "/tmp/none", "b\n"),
        ("prog", "b", "b\n"),
        ("prog", "/tmp/a:/tmp/none", "/tmp/a/prog: Permission denied"),
        ("prog", "/tmp/none", "prog: No such file or directory"),
        ("prog", "/tmp/a/prog", "/tmp/a/prog/prog: Not a directory"),
        ("/tmp/a/prog", "/tmp/b", "/tmp/a/prog: Permission denied"),
        ("/tmp/a/prog/x", "/tmp/b", "/tmp/a/prog/x: Not a directory"),
        ("lost", "/tmp/b", "/tmp/b/lost: its interpreter /none isn't there"),
        ("/tmp/b", "/tmp/b", "/tmp/b: Permission denied"),
    ],
)
async def test_its_program_is_searched_for_in_its_path(spawner: Spawner, name: str, path: str, found: str) -> None:
    agent = await an_agent(spawner)
    await jail.ended(await spawner.enter(agent, beside("/bin/sh", "-c", SEARCHED, cwd="/tmp")))
    before, steps = Belongings.now(), beside(name, env={"PATH": path}, cwd="/tmp")

    if found == "b\n":
        assert (await jail.ended(await spawner.enter(agent, steps))).out == found
    else:
        with pytest.raises(StepFailed, match=f"^Execute {name}: {found}$"):
            await spawner.enter(agent, steps)

    assert Belongings.now() == before
    await kill(agent)


async def test_it_sees_its_own_processes_alone_and_the_other_keeps_its_proc(spawner: Spawner) -> None:
    listing = "sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"
    agent = await an_agent(
        spawner,
        f"import os, time; print('here', flush=True)\nwhile len(seen := {listing}) < 4: pass\n"
        "print(seen, open('/proc/self/stat').read().split()[0], flush=True); time.sleep(600)",
    )

    code = f"import os, time; print({listing}, flush=True); time.sleep(600)"
    entered = await spawner.enter(agent, python_beside(code))

    assert await line(entered) == "[1, 2]\n"
    with trio.fail_after(PATIENCE):
        seen, own = (await line(agent)).rsplit(" ", 1)
    assert seen.startswith("[1, 2, ")
    assert own == "2\n"
    await kill(agent)
    await kill(entered)


async def test_both_have_the_same_files_and_network(spawner: Spawner) -> None:
    agent = await an_agent(
        spawner,
        "import socket; server = socket.create_server(('127.0.0.1', 4711)); open('/workspace/f', 'w').write('mine')\n"
        "print('here', flush=True); server.accept()[0].sendall(b'hello'); import time; time.sleep(600)",
    )

    code = "import socket; print(open('/workspace/f').read(), socket.create_connection(('127.0.0.1', 4711)).recv(9))"
    ended = await jail.ended(await spawner.enter(agent, python_beside(code)))

    assert (ended.out, ended.err) == ("mine b'hello'\n", "")
    await kill(agent)


async def test_where_the_other_has_the_hosts_network_it_has_that_too(spawner: Spawner) -> None:
    agent = await an_agent(spawner, network="host")
    steps = python_beside(FOREVER, network="host")
    entered = await spawner.enter(agent, steps)

    assert entered.observed.namespaces["net"] == os.stat("/proc/self/ns/net").st_ino
    net = walls.isolation_layers(steps, entered.observed)["net_ns"]
    assert (net.asked, net.active) == (False, False)
    await kill(agent)
    await kill(entered)


async def test_killing_it_ends_all_that_it_started_and_not_the_other(spawner: Spawner) -> None:
    code = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
print('started', flush=True)
time.sleep(600)
"""
    agent = await an_agent(spawner)
    entered = await spawner.enter(agent, python_beside(code))
    assert await line(entered) == "started\n"

    with trio.fail_after(PATIENCE):  # the pipe's end comes when the last of them has ended
        await entered.kill()
        assert (await jail.ended(entered)).status == Status(None, signal.SIGKILL)

    assert agent.status is None
    assert Path(f"/proc/{agent.program}").exists()
    await kill(agent)


async def test_its_program_can_end_and_be_signalled(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    entered = await spawner.enter(agent, python_beside(FOREVER))
    await line(entered)

    entered.signal(signal.SIGTERM)

    assert (await jail.ended(entered)).status == Status(None, signal.SIGTERM)
    await kill(agent)


@pytest.mark.parametrize("how", ["killed", "by itself"])
async def test_it_ends_with_the_agent_even_if_no_caller_waits_for_it(spawner: Spawner, how: str) -> None:
    before = Belongings.now()
    agent = await an_agent(spawner, "import signal; print('here', flush=True); signal.pause()")
    entered = [await spawner.enter(agent, python_beside(FOREVER)) for _ in range(3)]

    agent.signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)

    with trio.fail_after(PATIENCE):
        await agent.wait()
        assert [(await one.wait()).signal for one in entered] == [signal.SIGKILL] * 3
    for one in (agent, *entered):
        await kill(one)
    assert Belongings.now() == before


async def test_an_ended_sandbox_is_an_error_and_leaves_nothing(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    await kill(agent)
    before = Belongings.now()

    with pytest.raises(SandboxError, match="has ended"):
        await spawner.enter(agent, beside("/bin/true"))

    assert Belongings.now() == before


async def test_a_sandbox_that_ends_meanwhile_is_an_error_or_ends_it_too(spawner: Spawner) -> None:
    outcomes = set()
    before = Belongings.now()

    for delay in range(24):
        agent = await an_agent(spawner)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_kill_after, agent, delay / 2000)
                try:
                    entered = await spawner.enter(agent, python_beside(FOREVER))
                except SandboxError:
                    outcomes.add("error")
                else:
                    assert (await jail.ended(entered)).status == Status(None, signal.SIGKILL)
                    outcomes.add("ended")

    assert "error" in outcomes
    assert Belongings.now() == before


async def _kill_after(agent: Sandbox, seconds: float) -> None:
    await trio.sleep(seconds)
    await kill(agent)


async def test_a_frozen_sandbox_is_an_error_until_it_is_thawed(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    before = Belongings.now()

    agent.freeze()
    with pytest.raises(SandboxError, match="frozen"):
        await spawner.enter(agent, beside("/bin/true"))
    assert Belongings.now() == before
    agent.thaw()

    assert (await jail.ended(await spawner.enter(agent, beside("/bin/true")))).status == Status(0, None)
    await kill(agent)


async def test_freezing_a_sandbox_stops_what_has_entered_it(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    entered = await spawner.enter(agent, python_beside("while True: pass"))

    agent.freeze()

    await jail.becomes(lambda: _state(program_of(entered)), "T")
    agent.thaw()
    await jail.becomes(lambda: _state(program_of(entered)) == "T", False)
    await kill(agent)
    await kill(entered)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


async def test_a_program_without_walls_cant_be_entered(spawner: Spawner) -> None:
    program = Program(["/bin/sleep", "600"], {}, "/")
    sandbox = await spawner.spawn(plan_unjailed(program, probe.read_host(), Limits()))

    with pytest.raises(SandboxError, match="the host's own namespaces"):
        await spawner.enter(sandbox, beside("/bin/true"))

    await kill(sandbox)


async def test_what_admits_it_holds_for_all_that_comes_of_it(spawner: Spawner) -> None:
    agent = await an_agent(spawner)

    def admit(pid: int) -> None:  # any attribute that is inherited, as being in a cgroup is
        os.setpriority(os.PRIO_PROCESS, pid, 7)

    entered = await spawner.enter(agent, python_beside(FOREVER), admit)

    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in (entered.pid, program_of(entered))] == [7, 7]
    await kill(agent)
    await kill(entered)


async def test_a_process_that_isnt_admitted_never_gets_in(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    before = Belongings.now()

    def refuse(pid: int) -> None:
        raise RuntimeError(f"no room for {pid}")

    with pytest.raises(RuntimeError, match="no room"):
        await spawner.enter(agent, beside("/bin/true"), refuse)

    assert Belongings.now() == before
    await kill(agent)


async def test_many_at_once_all_run(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    outs: list[str] = []

    async def one(number: int) -> None:
        outs.append((await jail.ended(await spawner.enter(agent, beside("/bin/echo", str(number))))).out)

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(one, number)

    assert sorted(map(int, outs)) == list(range(12))
    await kill(agent)


async def test_many_leave_no_descriptor_mount_or_zombie(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    await kill(await spawner.enter(agent, beside("/bin/sleep", "600")))
    before, zygotes = Belongings.now(), len(os.listdir(f"/proc/{spawner.zygote.pid}/fd"))

    for _ in range(rounds(5)):
        await kill(await spawner.enter(agent, beside("/bin/sleep", "600")))

    assert Belongings.now() == before
    await zygote_closes(spawner, zygotes)
    await kill(agent)


async def test_a_cancelled_one_leaves_nothing_at_whatever_moment(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    before = Belongings.now()

    for delay in range(20):
        with trio.move_on_after(delay / 1000):
            await kill(await spawner.enter(agent, python_beside(FOREVER)))

    assert Belongings.now() == before
    await kill(agent)


async def test_a_dead_zygote_is_replaced_on_the_way(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    former = spawner.zygote.pid

    os.kill(former, signal.SIGKILL)

    assert (await jail.ended(await spawner.enter(agent, beside("echo", "in")))).out == "in\n"
    assert spawner.zygote.pid != former
    await kill(agent)


def breakable() -> list[Broken]:
    kinds = {type(step) for step in beside("/bin/true")}
    return [
        *(one for one in BROKEN if one.kind in kinds),
        *(Broken(s.Execute, calls) for calls in AFTER_THE_LAST_STEP),
        Broken(s.Execute, {"clone": NO}),
        Broken(s.Descend, {"clone3": NO}),
        Broken(s.Descend, {"mount": NO}),
        Broken(s.Descend, {"openat": NO}),
    ]


@pytest.mark.parametrize("how", breakable(), ids=lambda one: f"{one.kind.__name__}-{'-'.join(one.calls)}")
async def test_a_step_that_fails_is_named_and_leaves_nothing(spawner: Spawner, how: Broken) -> None:
    agent = await an_agent(spawner)
    steps = beside("/bin/sh", "-c", "touch ran")
    before = Belongings.now()

    with pytest.raises(StepFailed) as failure:
        await spawner.enter(agent, broken(steps, how))

    assert failure.value.step.split()[0] == how.kind.__name__
    assert failure.value.errno == errno.EPERM
    assert Belongings.now() == before
    assert (await jail.ended(await spawner.enter(agent, beside("/bin/ls", "/workspace")))).out == ""
    await kill(agent)


async def test_the_process_between_the_two_can_fail_to_clone(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    before = Belongings.now()
    steps = list(beside("/bin/true"))
    (place,) = [number for number, step in enumerate(steps) if isinstance(step, s.Descend)]
    steps[place] = s.Descend(0x20000 | 0x200, "/proc")  # CLONE_FS besides CLONE_NEWNS

    with pytest.raises(StepFailed, match="Descend: clone3: Invalid argument"):
        await spawner.enter(agent, steps)

    assert Belongings.now() == before
    await kill(agent)


async def test_what_is_no_namespace_cant_be_joined(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    with open("/dev/null") as null:
        wrong = evolve(agent, namespaces={**agent.namespaces, "uts": null.fileno()})
        before = Belongings.now()

        with pytest.raises(StepFailed, match="Join: setns: Invalid argument"):
            await spawner.enter(wrong, beside("/bin/true"))

        assert Belongings.now() == before
    await kill(agent)


async def test_a_full_sandbox_lets_no_process_in(spawner: Spawner) -> None:
    code = """
import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(600)
except OSError: print('full', flush=True)
time.sleep(600)
"""
    agent = await an_agent(spawner, code, limits=Limits(max_pids=8))
    before = Belongings.now()

    with pytest.raises(StepFailed, match="Resource temporarily unavailable"):
        await spawner.enter(agent, beside("/bin/true", limits=Limits(max_pids=8)))

    assert Belongings.now() == before
    await kill(agent)


async def test_a_plan_for_another_request_makes_nothing(spawner: Spawner) -> None:
    agent = await an_agent(spawner)
    before = Belongings.now()

    with pytest.raises(SandboxError):
        await spawner.spawn(beside("/bin/true"))
    with pytest.raises(SandboxError):
        await spawner.enter(agent, a_plan("/bin/true"))

    assert Belongings.now() == before
    await kill(agent)
