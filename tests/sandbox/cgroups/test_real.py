"""Groups of this host's kernel, whichever version it has: hogs and bombs in them, seen from outside.

The same file runs in a guest with version 2, as root and as an ordinary user: see ``test_guest.py``.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from agentos.sandbox.cgroups import files, lifetime, v1
from agentos.sandbox.cgroups.discover import Group, discover_here, open_root, remove_stale_cgroups
from agentos.sandbox.cgroups.values import CgroupError, Limits
from tests.support.commands import run_crippled
from tests.support.kernel import until
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

MIB = 1 << 20
HOG = "kept = []\nwhile True: kept.append(b'x' * (1 << 20))"
FORKS = """
import os, signal, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            signal.pause()
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
signal.pause()
"""
BOMB = """
import os
print("ready", flush=True)
while True:
    try:
        os.fork()
    except BlockingIOError:
        pass
"""
SHARE = 0.05  # of a CPU: less than a busy host leaves to each of its processes
BUSY = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
BUFFERS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
family, kind = sys.stdin.readline().split()
kept, held = [], 0
for _ in range(200):
    if kind == "stream" and family == "inet":
        with socket.create_server(("127.0.0.1", 0)) as server:
            pair = socket.create_connection(server.getsockname()), server.accept()[0]
    elif kind == "stream":
        pair = socket.socketpair()
    else:
        pair = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        pair[1].bind(("127.0.0.1", 0))
        pair[0].connect(pair[1].getsockname())
    kept.append(pair)
    for end in pair[: 1 if kind == "datagram" else 2]:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    try:
        for _ in range(200):
            held += pair[0].send(bytes(32 << 10))
    except OSError:
        pass
if kind == "datagram":  # what had no room is lost without an error
    held = 0
    for _, receiver in kept:
        receiver.setblocking(False)
        try:
            while True: held += len(receiver.recv(1 << 16))
        except BlockingIOError:
            pass
print(held, flush=True)
import signal
signal.pause()
"""
WAITS = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\nsignal.pause()"

HOLDS = "held = bytearray(b'x') * (24 << 20)\n"
HOLDS_PIPES = """
import fcntl, os
held = [os.pipe() for _ in range(24)]
for _, end in held:
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(end, bytes(1 << 20))
"""
HOLDS_SOCKETS = """
import socket
held, size = [], 0
while size < 24 << 20:
    held.append(socket.socketpair())
    held[-1][0].setblocking(False)
    try:
        while True: size += held[-1][0].send(bytes(32 << 10))
    except BlockingIOError:
        pass
"""

Start = Callable[[Group, str], "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def root() -> Iterator[Group]:
    """The group around everything here; a host that can't have one skips loudly, with the reason."""
    made = open_root(discover_here())
    if made.root is None or made.missing:
        if made.root is not None:
            made.root.remove()
        why = f"not all control groups: {made.missing[0].reason}; {made.missing[0].remedy}"
        able = os.geteuid() == 0 or "CGROUP2_SCOPE" in os.environ
        if able and "AGENTOS_MUST_SANDBOX" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    yield made.root
    made.root.kill()
    made.root.remove()
    assert not any(os.path.exists(path) for path in directories(made.root))


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(group, code)``: a Python that is in the group before its first line of ``code``; gone at the end."""
    with contextlib.ExitStack() as stack:

        def begin(group: Group, code: str) -> "subprocess.Popen[str]":
            argv = [sys.executable, "-I", "-S", "-c", f"input()\n{code}"]
            pipe = subprocess.PIPE
            program = stack.enter_context(subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True))
            stack.callback(program.kill)
            group.admit(program.pid)
            say(program, "go")
            return program

        yield begin


def directories(group: Group) -> list[str]:
    return list(group.directories.values()) if isinstance(group, v1.Group) else [group.directory]


def say(program: "subprocess.Popen[str]", line: str) -> None:
    assert program.stdin is not None
    program.stdin.write(f"{line}\n")
    program.stdin.flush()


def hear(program: "subprocess.Popen[str]", seconds: float = 60) -> str | None:
    """The program's next line, without its end; ``None`` if it says nothing for so long."""
    assert program.stdout is not None
    ready = select.select([program.stdout], [], [], seconds)[0]
    return program.stdout.readline().strip() if ready else None


@contextlib.contextmanager
def nested(group: Group, name: str, limits: Limits) -> Iterator[Group]:
    made = group.create_child(name, limits)
    try:
        yield made
    finally:
        made.kill()
        made.remove()


def test_what_is_in_force_is_what_was_asked(root: Group) -> None:
    with nested(root, "agent-1", Limits(memory=64 * MIB, pids=16, cpu=0.25, weight=50)) as group:
        found = group.read_limits()

    assert (found.memory, found.swap, found.pids, found.cpu, found.weight) == (64 * MIB, 0, 16, 0.25, 50)


def test_limits_are_raised_lowered_lifted_and_set_while_a_program_runs(root: Group, start: Start) -> None:
    steps = [
        Limits(memory=128 * MIB, pids=32, cpu=0.5, weight=200),
        Limits(memory=32 * MIB, pids=8, cpu=0.1, weight=20),
        Limits(),
        Limits(memory=48 * MIB, pids=9, cpu=0.2, weight=100),
    ]
    with nested(root, "changing", Limits(memory=64 * MIB, pids=16, cpu=0.25, weight=50)) as group:
        program = start(group, WAITS)
        assert hear(program) == "ready"
        for limits in steps:
            group.change_limits(limits)

            found = group.read_limits()
            assert (found.memory, found.pids, found.cpu) == (limits.memory, limits.pids, limits.cpu)
            assert abs((found.weight or 0) - (limits.weight or 100)) <= 1
        assert program.poll() is None


@pytest.mark.parametrize("held", [HOLDS, HOLDS_PIPES, HOLDS_SOCKETS], ids=["its own", "pipes", "sockets"])
def test_a_memory_limit_below_what_is_in_use_is_refused_and_kills_nothing(root: Group, start: Start, held: str) -> None:
    with nested(root, "full", Limits(memory=64 * MIB)) as group:
        program = start(group, held + WAITS)
        assert hear(program) == "ready"

        with pytest.raises(CgroupError):
            group.change_limits(Limits(memory=16 * MIB))

        assert program.poll() is None


def test_a_memory_hog_is_killed_at_its_limit_and_the_evidence_says_so(root: Group, start: Start) -> None:
    with nested(root, "hog", Limits(memory=32 * MIB)) as group:
        assert start(group, HOG).wait(PATIENCE) == -signal.SIGKILL

        assert group.evidence().describe() == ("memory limit 32M reached",)
        peak = group.usage().peak
        assert peak is not None
        assert 30 * MIB < peak <= 32 * MIB


def test_out_of_memory_ends_the_whole_group_where_the_kernel_can_do_that(root: Group, start: Start) -> None:
    with nested(root, "crew", Limits(memory=32 * MIB)) as group:
        bystander = start(group, ECHO)
        assert start(group, HOG).wait(PATIENCE) == -signal.SIGKILL

        if group.version == 2:
            assert bystander.wait(PATIENCE) == -signal.SIGKILL
        else:
            say(bystander, "still here")
            assert hear(bystander) == "still here"


@pytest.mark.parametrize(
    ("kind", "below"),
    [("inet stream", False), ("inet stream", True), ("unix stream", True), ("inet datagram", True)],
)
def test_buffers_of_sockets_are_bounded_by_the_memory_limit(root: Group, start: Start, kind: str, below: bool) -> None:
    """Also for a command in a group below, which has no limit of its own: version 1 counts them only where one is."""
    limit = 32 * MIB
    with nested(root, "sockets", Limits(memory=limit)) as group, nested(group, "command", Limits()) as command:
        program = start(command if below else group, BUFFERS)
        say(program, kind)
        said = hear(program)

        # Version 2 kills at the limit, and where buffers have a limit of their own they take no more.
        assert said == "" or int(said or limit * 2) <= limit + limit // v1.SOCKET_SHARE


def test_a_limit_of_buffers_is_lifted_with_that_of_memory(root: Group) -> None:
    with nested(root, "sockets", Limits(memory=32 * MIB)) as group:
        first = group.read_limits().sockets
        group.change_limits(Limits(memory=64 * MIB))
        second = group.read_limits().sockets
        group.change_limits(Limits())

        ours = (8 * MIB, 16 * MIB) if isinstance(group, v1.Group) else (None, None)
        assert (first, second, group.read_limits().sockets) == (*ours, None)


def test_a_fork_bomb_is_stopped_at_the_limit(root: Group, start: Start) -> None:
    with nested(root, "bomb", Limits(pids=12)) as group:
        assert hear(start(group, FORKS)) == "11"

        assert len(group.processes()) == group.usage().pids == 12
        assert group.evidence().describe() == ("fork refused: 12 processes",)


def test_a_busy_program_gets_no_more_than_its_share(root: Group, start: Start) -> None:
    with nested(root, "busy", Limits(cpu=SHARE)) as group:
        began = time.monotonic()
        start(group, BUSY).wait(PATIENCE)

        took, used = time.monotonic() - began, group.usage().cpu_seconds
        assert used is not None
        assert 0.1 <= used < 2 * SHARE * took
        assert 0 < group.evidence().throttled < 1
        assert group.evidence().describe()[0].startswith("throttled ")


def test_a_program_without_trouble_leaves_no_evidence(root: Group, start: Start) -> None:
    with nested(root, "calm", Limits(memory=64 * MIB, pids=8, cpu=8.0)) as group:
        start(group, "print(1)").wait(PATIENCE)

        assert group.evidence().describe() == ()


def test_frozen_programs_stand_still_until_they_are_thawed(root: Group, start: Start) -> None:
    with nested(root, "frozen", Limits()) as group:
        program = start(group, ECHO)
        group.freeze()
        say(program, "hello")

        assert hear(program, 0.2) is None
        group.thaw()
        assert hear(program) == "hello"


def test_frozen_programs_can_be_killed(root: Group, start: Start) -> None:
    with nested(root, "icy", Limits()) as group:
        program = start(group, WAITS)
        assert hear(program) == "ready"
        group.freeze()

        group.kill()
        assert program.wait(PATIENCE) == -signal.SIGKILL


def test_a_child_in_a_frozen_parent_stays_frozen_and_dies_with_it(root: Group, start: Start) -> None:
    with nested(root, "parent", Limits()) as parent:
        child = parent.create_child("child", Limits())
        program = start(child, ECHO)
        parent.freeze()
        child.thaw()
        say(program, "hello")
        assert hear(program, 0.2) is None

        if child.version == 1:
            with pytest.raises(CgroupError, match="a group around this one is frozen"):
                child.kill()
            parent.thaw()
        child.kill()
        assert program.wait(PATIENCE) == -signal.SIGKILL


def test_kill_takes_a_bomb_that_goes_on_forking(root: Group, start: Start) -> None:
    with nested(root, "bomb", Limits(pids=24)) as group:
        program = start(group, BOMB)
        assert hear(program) == "ready"

        group.kill()
        assert group.processes() == frozenset()
        assert program.wait(PATIENCE) == -signal.SIGKILL


def test_a_bomb_is_killed_with_what_other_kernels_lack(root: Group, start: Start) -> None:
    """Without the freezer of version 1, without the kill file of version 2."""
    with nested(root, "bomb", Limits(pids=24)) as group:
        program = start(group, BOMB)
        assert hear(program) == "ready"

        if isinstance(group, v1.Group):
            replace(group, directories=without(group, "freezer")).kill()
            assert group.read_limits().pids == 24
        else:
            group._kill_one_by_one()
        assert program.wait(PATIENCE) == -signal.SIGKILL
        assert files.list_processes(directories(group)) == frozenset()


def without(group: v1.Group, controller: str) -> dict[str, str]:
    return {name: path for name, path in group.directories.items() if name != controller}


def test_a_childs_program_is_bounded_by_its_parents_memory(root: Group, start: Start) -> None:
    small, large = Limits(memory=32 * MIB), Limits(memory=256 * MIB)
    with nested(root, "parent", small) as parent, nested(parent, "child", large) as child:
        assert start(child, HOG).wait(PATIENCE) == -signal.SIGKILL

        assert child.evidence().describe() == ("killed for memory by a limit above its own, or by the host",)
        assert parent.evidence().describe() == ("memory limit 32M reached",)


def test_a_child_at_its_own_limit_is_not_told_of_its_parent(root: Group, start: Start) -> None:
    with nested(root, "parent", Limits(memory=256 * MIB)) as parent:
        survivor = start(parent, ECHO)
        with nested(parent, "child", Limits(memory=32 * MIB)) as child:
            assert start(child, HOG).wait(PATIENCE) == -signal.SIGKILL

            assert child.evidence().describe() == ("memory limit 32M reached",)
        assert parent.evidence().describe() == ()
        say(survivor, "still here")
        assert hear(survivor) == "still here"


def test_a_childs_forks_are_bounded_by_its_parents(root: Group, start: Start) -> None:
    with nested(root, "parent", Limits(pids=8)) as parent, nested(parent, "child", Limits(pids=64)) as child:
        hear(start(parent, "print('ready', flush=True)\ninput()"))
        assert hear(start(child, FORKS)) == "6"

        assert parent.usage().pids == 8
        said = child.evidence().describe()
        assert said in ((), ("fork refused: the processes of a group above it were used up",))
        assert said or parent.evidence().forks_refused  # since 6.11 the kernel counts it where the limit is


def test_a_childs_cpu_share_is_bounded_by_its_parents(root: Group, start: Start) -> None:
    with nested(root, "parent", Limits(cpu=SHARE)) as parent, nested(parent, "child", Limits(cpu=0.9)) as child:
        began = time.monotonic()
        start(child, BUSY).wait(PATIENCE)

        took, used = time.monotonic() - began, child.usage().cpu_seconds
        assert used is not None
        assert 0.1 <= used < 2 * SHARE * took


def test_killing_a_parent_kills_its_children_groups(root: Group, start: Start) -> None:
    parent = root.create_child("parent", Limits())
    program = start(parent.create_child("child", Limits()).create_child("grandchild", Limits()), WAITS)
    assert hear(program) == "ready"

    parent.kill()
    assert program.wait(PATIENCE) == -signal.SIGKILL
    parent.remove()
    assert not any(os.path.exists(path) for path in directories(parent))


def test_a_limit_that_cannot_be_had_leaves_nothing_behind(root: Group) -> None:
    if isinstance(root, v1.Group):
        crippled: Group = replace(root, directories=without(root, "memory"))
    else:
        crippled = replace(root, controllers=root.controllers - {"memory"})

    with pytest.raises(CgroupError, match="no memory controller for the limits of lost"):
        crippled.create_child("lost", Limits(memory=MIB))
    assert not any(os.path.exists(f"{path}/lost") for path in directories(root))


def test_a_name_is_given_once(root: Group) -> None:
    with nested(root, "twin", Limits()) as first:
        with pytest.raises(CgroupError, match="can't be created"):
            root.create_child("twin", Limits())

        assert all(os.path.isdir(path) for path in directories(first))


def test_a_group_with_a_process_in_it_is_not_removed(root: Group, start: Start) -> None:
    with nested(root, "busy", Limits()) as group:
        program = start(group, ECHO)
        with pytest.raises(CgroupError, match="can't be removed"):
            files.remove_directories(files.list_tree(directories(group)[0]), timeout=0.05)

        say(program, "still here")
        assert hear(program) == "still here"
        assert program.pid in group.processes()


def test_a_group_is_removed_with_its_processes_though_the_task_is_cancelled(root: Group, start: Start) -> None:
    group = root.create_child("cancelled", Limits())
    program = start(group, WAITS)

    async def remove() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await lifetime.remove(group)

    trio.run(remove)

    assert not any(os.path.exists(path) for path in directories(group))
    assert program.wait(PATIENCE) == -signal.SIGKILL


def test_a_process_that_is_gone_cannot_be_admitted(root: Group) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(PATIENCE)

    with nested(root, "late", Limits()) as group, pytest.raises(CgroupError, match="No such process"):
        group.admit(gone.pid)


CLONE = """
import ctypes, os, struct, sys
args = struct.pack("=11Q", 0x200000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, int(sys.argv[1]))  # CLONE_INTO_CGROUP, SIGCHLD
pid = ctypes.PyDLL(None).syscall(435, args, len(args))
if pid == 0:
    os.write(1, open("/proc/self/cgroup", "rb").read())
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_a_clone_is_born_inside_where_the_kernel_has_that(root: Group) -> None:
    with nested(root, "born", Limits(pids=4)) as group:
        ways = group.open_entry()
        try:
            if ways.directory is None:
                assert group.version == 1
                return
            argv = [sys.executable, "-I", "-S", "-c", CLONE, str(ways.directory)]
            said = subprocess.run(
                argv, pass_fds=(ways.directory,), capture_output=True, text=True, check=True, timeout=60
            ).stdout
        finally:
            ways.close()

        assert said.strip().endswith("/born/self")


SWEEP = """
import sys
from agentos.sandbox.cgroups import files
from agentos.sandbox.cgroups.values import CgroupError
try:
    with files.kill_processes(sys.argv[1:]):
        print("killed")
except CgroupError as error:
    print(error)
"""
LEFT_BEHIND = """
import json, subprocess, sys, time
from agentos.sandbox.cgroups.values import Limits
from agentos.sandbox.cgroups.discover import discover_here, open_root
root = open_root(discover_here()).root
orphan = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
root.create_child("agent", Limits(pids=5)).admit(orphan.pid)
where = list(root.directories.values()) if root.version == 1 else [root.directory]
print(json.dumps([orphan.pid, where]), flush=True)
sys.stdin.read()
"""


def test_a_cgroup_that_is_removed_while_it_is_read_has_no_processes(root: Group) -> None:
    directory = os.path.join(directories(root)[0], "short-lived")
    over = threading.Event()

    def create_and_remove() -> None:
        while not over.is_set():
            os.mkdir(directory)
            os.rmdir(directory)

    thread = threading.Thread(target=create_and_remove)
    thread.start()
    try:
        assert not any(files.list_processes([directory]) for _ in range(rounds(4_000)))
    finally:
        over.set()
        thread.join()


def test_what_a_killed_kernel_left_is_swept_and_what_a_living_one_has_is_not(root: Group) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LEFT_BEHIND], stdin=pipe, stdout=pipe, text=True) as kernel:
        orphan, where = json.loads(hear(kernel) or "")
        name = os.path.basename(where[0])
        watched = os.pidfd_open(orphan)

        assert name not in remove_stale_cgroups(discover_here())
        kernel.kill()
        kernel.wait(PATIENCE)
        remove_stale_cgroups(discover_here())  # unless a kernel of another test that starts just now is quicker
        assert select.select([watched], [], [], 60)[0]
        os.close(watched)
    until(lambda: not any(os.path.exists(path) for path in where), "its group is removed")
    assert all(os.path.isdir(path) for path in directories(root))


def test_a_process_that_may_not_be_killed_is_named(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        pid = 1
        if os.geteuid() == 0:
            other = stack.enter_context(subprocess.Popen(["sleep", "60"], user=54321))
            stack.callback(other.kill)
            pid = other.pid
        (tmp_path / "cgroup.procs").write_text(f"{pid}\n")

        options = ["--no-new-privileges"]  # root, but not the host's
        swept = run_crippled(options, ["-c", SWEEP, str(tmp_path)], tmp_path, os.environ)

    said = f"{tmp_path}: process {pid} can't be killed: Operation not permitted\n"
    assert swept.stdout.decode() == said, swept.stderr
