"""Who is over its memory limit without a control group: real hogs of many kinds, and those who only seem to be."""

import contextlib
import errno
import math
import signal
import sys
from collections.abc import AsyncIterator, Sequence

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import MIB, Limits, Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.watch import processes
from agentos.sandbox.watch.memory import Exceeded, MemoryWatcher, outermost, subtree_sums
from agentos.sandbox.watch.processes import Process, ProcessCache
from tests.sandbox.jail import PYTHON, SDK, Belongings, kill, line, outer, python, run
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

LIMIT = 100 * MIB
PRELUDE = """
import ctypes, mmap, os, signal, sys, threading, time
def fork(function):
    if os.fork() == 0:
        function()
        signal.pause()
def take(size):
    'Memory of our own, each page touched.'
    mine = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, size, 4096):
        mine[page] = 1
    return mine
def in_memory(place, size):
    'A file without a name that processes may share, each page touched.'
    fd = os.open(place, os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(fd, size)
    shared = mmap.mmap(fd, size)
    os.close(fd)
    for page in range(0, size, 4096): shared[page] = 1
    return shared
MIB = 1 << 20
"""
MANY = """
kept = []
for _ in range(5):
    fork(lambda: kept.append(take(40 * MIB)))
signal.pause()
"""
HOGS = {
    "of many processes": MANY,
    "that forks and then touches what it had": """
mine = take(40 * MIB)
def touch():
    for page in range(0, 40 * MIB, 4096): mine[page] = 2
for _ in range(4): fork(touch)
signal.pause()
""",
    "with shared memory": """
kept = []
def share():
    kept.append(in_memory(place, 50 * MIB))
for place in ('/workspace', '/tmp', '/dev/shm'): fork(share)
signal.pause()
""",
    "with page tables": """
wide = mmap.mmap(-1, 128 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
for place in range(0, 128 << 30, 2 * MIB): wide[place]
signal.pause()
""",
    "with page tables for pages that are far apart, in little address space": """
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for place in range(1 << 40, (1 << 40) + 45_000 * 2 * MIB, 2 * MIB):
    ctypes.string_at(libc.mmap(place, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0), 1)
signal.pause()
""",
    "with page tables, whose first thread has ended": """
def spread():
    wide = mmap.mmap(-1, 128 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    for place in range(0, 128 << 30, 2 * MIB): wide[place]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.sigwait([signal.SIGTERM])
threading.Thread(target=spread).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
""",
    "with files in memory file systems of its own": """
for place in ('/workspace', '/tmp', '/dev/shm'):
    with open(place + '/much', 'wb') as file:
        for _ in range(40): file.write(bytes(MIB))
signal.pause()
""",
    "with a file of its own and as much shared memory": """
shared = in_memory('/tmp', 60 * MIB)
with open('/dev/shm/much', 'wb') as file:
    for _ in range(60): file.write(bytes(MIB))
signal.pause()
""",
    "whose first thread has ended": """
kept = []
def hold():
    kept.append(take(70 * MIB))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.sigwait([signal.SIGTERM])
def half():
    threading.stack_size(256 << 10)
    threading.Thread(target=hold).start()
    ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
fork(half)
half()
""",
}


@contextlib.asynccontextmanager
async def a_watcher() -> AsyncIterator[MemoryWatcher]:
    watcher = MemoryWatcher()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.serve)
        yield watcher
        nursery.cancel_scope.cancel()


class Watched:
    """A sandbox in a group, and what was said of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.exceeded: list[Exceeded] = []

    def end(self, exceeded: Exceeded) -> None:
        self.exceeded.append(exceeded)
        self.sandbox.signal(signal.SIGKILL)


@contextlib.asynccontextmanager
async def watched_sandboxes(spawner: Spawner, *codes: str, memory: int = LIMIT) -> AsyncIterator[Sequence[Watched]]:
    """A sandbox for each program; all gone at the end."""
    started: list[Watched] = []
    try:
        for code in codes:
            plan = python(PRELUDE + code, limits=Limits(memory=memory))
            started.append(Watched(await spawner.spawn(plan)))
        yield started
    finally:
        for one in started:
            await kill(one.sandbox)


@pytest.mark.parametrize("hog", HOGS)
async def test_a_memory_hog_is_killed(spawner: Spawner, hog: str) -> None:
    async with watched_sandboxes(spawner, HOGS[hog]) as [one], a_watcher() as watcher:
        watcher.add(1, one.sandbox.pid, LIMIT, one.end, tmpfs=one.sandbox.tmpfs.values())
        with trio.fail_after(PATIENCE):
            status = await one.sandbox.wait()

    assert status.signal == signal.SIGKILL
    assert [(said.limit, said.found > LIMIT) for said in one.exceeded] == [(LIMIT, True)]
    assert str(one.exceeded[0]).startswith(f"memory limit 100M reached (watched: {one.exceeded[0].measure} ")


@pytest.mark.parametrize("call", ["memfd_create(b'', 0)", "shmget(0, MIB, 512)", "msgget(0, 512)", "semget(0, 1, 512)"])
async def test_memory_that_the_watcher_would_not_find_is_refused(spawner: Spawner, call: str) -> None:
    code = f"{PRELUDE}\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.{call}, ctypes.get_errno())"

    ended = await run(spawner, python(code))

    assert ended.out == f"-1 {errno.ENOSYS}\n"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("mmap.mmap(-1, MIB)", "EPERM"),
        ("mmap.mmap(os.open('/dev/zero', os.O_RDWR), MIB)", "EACCES"),
        ("os.open('/proc/self/fd/%d' % os.open('/dev/zero', os.O_RDONLY), os.O_RDWR)", "EACCES"),
        ("mmap.mmap(os.open('/dev/zero', os.O_RDONLY), MIB, flags=mmap.MAP_PRIVATE)[0]", "0"),
        ("open('/dev/null', 'w').write('x')", "1"),
        ("mmap.mmap(os.open('/dev/zero', os.O_RDONLY), MIB, prot=mmap.PROT_READ)[0]", "0"),
        ("os.write(os.open('/dev/full', os.O_WRONLY), b'x')", "ENOSPC"),
        ("in_memory('/dev/shm', MIB)[0]", "1"),
    ],
)
async def test_pages_that_only_a_mapping_holds_are_refused_and_others_are_not(
    spawner: Spawner, code: str, error: str
) -> None:
    tries = f"import errno\ntry: print({code})\nexcept OSError as error: print(errno.errorcode[error.errno])"

    ended = await run(spawner, python(PRELUDE + tries))

    assert ended.out == f"{error}\n"


async def test_a_host_without_landlock_has_no_dev_zero_where_nobody_counts_memory(spawner: Spawner) -> None:
    code = "print(os.path.exists('/dev/zero'), os.path.exists('/dev/null'))"
    host = replace(probe.read_host(), landlock_abi=0, memory_cgroup=False)
    policy = Policy(interpreter=PYTHON, sdk=SDK)
    argv = (sys.executable, "-I", "-S", "-c", f"import os; {code}")

    found = await run(spawner, plan_sandbox(policy, Program(argv), host, outer()))

    assert found.out == "False True\n"


async def test_a_program_that_hides_what_it_has_open_may_go_on(spawner: Spawner) -> None:
    hides = "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print('hidden', flush=True); signal.pause()"
    async with watched_sandboxes(spawner, hides, MANY) as [modest, hog], a_watcher() as watcher:
        with trio.fail_after(PATIENCE):
            assert await line(modest.sandbox) == "hidden\n"
            watcher.add(1, modest.sandbox.pid, LIMIT, modest.end)
            watcher.add(2, hog.sandbox.pid, LIMIT, hog.end)
            await hog.sandbox.wait()

    assert (len(hog.exceeded), modest.exceeded) == (1, [])


async def test_a_process_that_hides_its_open_files_is_killed_for_the_memory_it_holds(spawner: Spawner) -> None:
    hides = "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); kept = take(150 * MIB); signal.pause()"
    async with watched_sandboxes(spawner, hides) as [one], a_watcher() as watcher:
        watcher.add(1, one.sandbox.pid, LIMIT, one.end)
        with trio.fail_after(PATIENCE):
            status = await one.sandbox.wait()

    assert status.signal == signal.SIGKILL
    assert str(one.exceeded[0]).startswith("memory limit 100M reached")


async def test_memory_that_processes_share_counts_once(spawner: Spawner) -> None:
    shares = """
shared = in_memory('/dev/shm', 40 * MIB)
def touch():
    for page in range(0, 40 * MIB, 4096): shared[page] = 1
    print('touched', flush=True)
for _ in range(5): fork(touch)
signal.pause()
"""
    async with watched_sandboxes(spawner, shares, MANY) as [modest, hog], a_watcher() as watcher:
        with trio.fail_after(PATIENCE):
            said = ""
            while said.count("touched") < 5:
                said += await line(modest.sandbox)
            assert sum(one.rss for one in _members(modest.sandbox)) > LIMIT, "the test's premise"
            watcher.add(1, modest.sandbox.pid, LIMIT, modest.end)
            watcher.add(2, hog.sandbox.pid, LIMIT, hog.end)
            await hog.sandbox.wait()

    assert (len(hog.exceeded), modest.exceeded) == (1, [])


async def test_a_file_in_memory_that_processes_map_counts_once(spawner: Spawner) -> None:
    maps = """
with open('/dev/shm/data', 'wb') as file:
    for _ in range(60): file.write(bytes(MIB))
def look():
    with open('/dev/shm/data', 'r+b') as file: data = mmap.mmap(file.fileno(), 0)
    for page in range(0, 60 * MIB, 4096): data[page]
    print('looked', flush=True)
    signal.pause()
for _ in range(2): fork(look)
signal.pause()
"""
    async with watched_sandboxes(spawner, maps, MANY) as [modest, hog], a_watcher() as watcher:
        with trio.fail_after(PATIENCE):
            said = ""
            while said.count("looked") < 2:
                said += await line(modest.sandbox)
            assert sum(one.rss for one in _members(modest.sandbox)) > LIMIT, "the test's premise"
            watcher.add(1, modest.sandbox.pid, LIMIT, modest.end, tmpfs=modest.sandbox.tmpfs.values())
            watcher.add(2, hog.sandbox.pid, LIMIT, hog.end, tmpfs=hog.sandbox.tmpfs.values())
            await hog.sandbox.wait()

    assert (len(hog.exceeded), modest.exceeded) == (1, [])


async def test_of_many_lives_no_file_stays_open(spawner: Spawner) -> None:
    async with a_watcher() as watcher:
        before = Belongings.now()
        for life in range(rounds(8)):
            async with watched_sandboxes(spawner, "signal.pause()") as [one]:
                assert sorted(one.sandbox.tmpfs) == ["/dev/shm", "/tmp", "/workspace"]
                watcher.add(life % 7, one.sandbox.pid, LIMIT, one.end, tmpfs=one.sandbox.tmpfs.values())
        assert Belongings.now().descriptors > before.descriptors, "the test's premise"
        for group in range(7):
            watcher.remove(group)

        with trio.move_on_after(PATIENCE):  # it may look at something just now, in a thread
            while (now := Belongings.now()) != before:
                await trio.sleep(0.01)
        assert now == before


async def test_a_child_that_has_its_parents_memory_until_it_execs_counts_nothing(spawner: Spawner) -> None:
    like_vfork = """
mine = take(60 * MIB)
libc = ctypes.CDLL(None)
stack = mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + MIB - 64
libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.c_void_p(top), 0x100 | signal.SIGCHLD, None)
print('cloned', flush=True)
signal.pause()
"""
    async with watched_sandboxes(spawner, like_vfork, MANY) as [modest, hog], a_watcher() as watcher:
        with trio.fail_after(PATIENCE):
            assert await line(modest.sandbox) == "cloned\n"
            assert sum(one.rss for one in _members(modest.sandbox)) > LIMIT, "the test's premise"
            watcher.add(1, modest.sandbox.pid, LIMIT, modest.end)
            watcher.add(2, hog.sandbox.pid, LIMIT, hog.end)
            await hog.sandbox.wait()

    assert (len(hog.exceeded), modest.exceeded) == (1, [])


async def test_a_group_is_bounded_together_with_the_groups_in_it(spawner: Spawner) -> None:
    half = "kept = take(60 * MIB); print('taken', flush=True); signal.pause()"
    async with watched_sandboxes(spawner, half, half) as [parent, child], a_watcher() as watcher:
        with trio.fail_after(PATIENCE):
            await line(parent.sandbox)
            await line(child.sandbox)
            watcher.add(1, parent.sandbox.pid, LIMIT, parent.end)
            watcher.add(2, child.sandbox.pid, LIMIT, child.end, parent=1)
            await parent.sandbox.wait()

    assert (len(parent.exceeded), child.exceeded) == (1, [])


async def test_a_further_program_of_an_agents_counts_for_it(spawner: Spawner) -> None:
    half = "kept = take(60 * MIB); print('taken', flush=True); signal.pause()"
    async with watched_sandboxes(spawner, half, half) as [agent, beside], a_watcher() as watcher:
        with trio.fail_after(PATIENCE):
            await line(agent.sandbox)
            await line(beside.sandbox)
            watcher.add(1, agent.sandbox.pid, LIMIT, agent.end)
            watcher.join(1, beside.sandbox.pid)
            await agent.sandbox.wait()

    assert len(agent.exceeded) == 1


async def test_a_sandbox_that_is_removed_is_watched_no_longer(spawner: Spawner) -> None:
    async with watched_sandboxes(spawner, MANY, MANY) as [free, hog], a_watcher() as watcher:
        watcher.add(1, free.sandbox.pid, LIMIT, free.end)
        watcher.add(2, hog.sandbox.pid, LIMIT, hog.end)
        watcher.remove(1)
        with trio.fail_after(PATIENCE):
            await hog.sandbox.wait()

    assert (len(hog.exceeded), free.exceeded) == (1, [])


async def test_processes_that_lose_their_parents_are_still_found(spawner: Spawner) -> None:
    orphan = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('left', flush=True)
        signal.pause()
    os._exit(0)
os.wait()
print('waited', flush=True)
signal.pause()
"""
    async with watched_sandboxes(spawner, orphan) as [one]:
        with trio.fail_after(PATIENCE):
            said = ""
            while said.count("\n") < 2:
                said += await line(one.sandbox)
        assert len(_members(one.sandbox)) == 3  # PID 1, the program, the orphan


def _members(sandbox: Sandbox) -> list[Process]:
    return ProcessCache().list_by_group({1: processes.root_start_times(sandbox.pid)})[1]


@st.composite
def trees(draw: st.DrawFn) -> dict[int, int | None]:
    """Groups, each with the one around it."""
    size = draw(st.integers(1, 30))
    return {number: draw(st.sampled_from([None, *range(number)])) for number in range(size)}


@given(parents=trees(), data=st.data())
def test_a_groups_sum_is_that_of_all_groups_below_it_and_its_own(
    parents: dict[int, int | None], data: st.DataObject
) -> None:
    own = {group: data.draw(st.integers(0, 1000)) for group in parents}

    sums = subtree_sums(own, parents)

    assert sums == {group: sum(own[other] for other in own if group in _line(other, parents)) for group in own}
    assert sum(sums[group] for group in parents if parents[group] is None) == sum(own.values())


@given(parents=trees(), data=st.data())
def test_of_those_over_their_limits_exactly_the_outermost_are_ended(
    parents: dict[int, int | None], data: st.DataObject
) -> None:
    over = data.draw(st.sets(st.sampled_from(sorted(parents))))

    ended = outermost(over, parents)

    assert ended <= over
    assert all(len(ended & set(_line(group, parents))) == 1 for group in over)


def _line(group: int, parents: dict[int, int | None]) -> list[int]:
    """The group and those above it."""
    above = parents[group]
    return [group, *(_line(above, parents) if above is not None else [])]


@given(parents=st.lists(st.integers(0, 40), max_size=40), roots=st.sets(st.integers(1, 40), max_size=4))
def test_every_way_up_ends_even_where_numbers_were_used_again(parents: list[int], roots: set[int]) -> None:
    seen = {pid: Process(pid, pid, parent, 0, 1, False, 0, 0) for pid, parent in enumerate(parents, 1)}

    found = processes.find_ancestors(seen, roots)

    assert found.keys() == seen.keys()
    for pid, end in found.items():
        steps, at = 0, pid
        while at in seen and at not in roots and steps <= len(seen):
            at, steps = seen[at].parent, steps + 1
        assert end == at or (steps > len(seen) and end not in roots and end in seen)


def test_the_verdict_is_written_as_people_write_sizes() -> None:
    assert str(Exceeded(256 * MIB, math.floor(270.4 * MIB), "PSS")) == "memory limit 256M reached (watched: PSS 270M)"
