"""What a workspace holds: real trees, among them hostile ones, and programs that fill theirs up."""

# A directory in /tmp keeps nobody waiting here.

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import MIB, Limits, Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.watch.disk import (
    MAX_CLOSED_WALKS,
    DiskWatcher,
    Exceeded,
    Tmpfs,
    exceeded_limit,
    find_tmpfs,
    read_image,
    read_tmpfs,
)
from agentos.sandbox.watch.tree_usage import TreeWalk, Usage, measure_tree
from tests.sandbox.jail import PYTHON, Belongings, kill, line, outer, python
from tests.support.wire import PATIENCE

NO_LIMIT = 1 << 60
DEEP = 5_000  # levels: more than descriptors, and the path to the last is longer than a path may be


@pytest.fixture
def place() -> Iterator[int]:
    """An open directory, empty, on the host's disk; emptied at the end however deep it has become."""
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/var/tmp") as path:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        yield fd
        _cut_down(fd)
        os.close(fd)


def _cut_down(root: int) -> None:
    """Remove what is in a tree of any depth, from its leaves up."""
    here, names = os.dup(root), [""]
    while names:
        below = None
        for entry in list(os.scandir(here)):
            if entry.is_dir(follow_symlinks=False):
                below = entry.name
            else:
                os.unlink(entry.name, dir_fd=here)
        if below is not None:
            os.chmod(below, 0o700, dir_fd=here)
        there = os.open(below or "..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = there
        if below is not None:
            names.append(below)
        elif name := names.pop():
            os.rmdir(name, dir_fd=here)
    os.close(here)


def write(root: int, name: str, size: int) -> None:
    fd = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=root)
    os.write(fd, b"x" * size)
    os.close(fd)


def usage(root: int) -> Usage:
    return measure_tree(root, NO_LIMIT, NO_LIMIT)


def descriptors() -> int:
    return Belongings.now().descriptors


@given(sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20_000)), max_size=12))
def test_the_sum_is_that_of_all_files_blocks(sizes: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/var/tmp") as path:
        for depth, _ in sizes:
            os.makedirs(path + "/d" * depth, exist_ok=True)
        for number, (depth, size) in enumerate(sizes):
            with open(f"{path}{'/d' * depth}/{number}", "wb") as file:
                file.write(b"x" * size)
        every = [path, *(os.path.join(at, name) for at, below, files in os.walk(path) for name in (*below, *files))]
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

        found = usage(root)

        os.close(root)
        assert found == Usage(sum(os.lstat(name).st_blocks * 512 for name in every), len(every), 0)


def test_a_hard_link_counts_once_and_a_symbolic_link_isnt_followed(place: int) -> None:
    write(place, "file", MIB)
    os.mkdir("below", dir_fd=place)
    for number in range(5):
        os.link("file", f"below/{number}", src_dir_fd=place, dst_dir_fd=place)
    write(place, "pair", MIB)
    os.link("pair", "below/pair", src_dir_fd=place, dst_dir_fd=place)
    os.symlink("/usr", "elsewhere", dir_fd=place)

    found = usage(place)

    assert found.inodes == 5  # itself, file, pair, below, elsewhere
    assert 2 * MIB <= found.size < 3 * MIB


def test_another_file_system_below_is_not_counted() -> None:
    root = os.open("/dev", os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.stat("shm", dir_fd=root).st_dev == os.fstat(root).st_dev:
            pytest.skip("here /dev/shm is in the same file system as /dev")
        with tempfile.NamedTemporaryFile(prefix="aos-", dir="/dev/shm") as file:
            file.write(b"x" * (64 * MIB))
            file.flush()
            assert usage(root).size < 64 * MIB
    finally:
        os.close(root)


def test_a_tree_of_any_depth_is_counted_with_two_descriptors(place: int) -> None:
    here = os.dup(place)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    write(here, "last", MIB)
    os.close(here)
    before = descriptors()

    found = usage(place)

    assert (found.inodes, found.size >= MIB) == (DEEP + 2, True)
    assert descriptors() == before


def test_a_walk_stops_as_soon_as_there_is_too_much(place: int) -> None:
    for number in range(300):
        write(place, str(number), 1)

    assert measure_tree(place, NO_LIMIT, 100).inodes == 101
    assert measure_tree(place, 20 * 4096, NO_LIMIT).inodes < 30


def test_a_walk_whose_directory_is_moved_away_goes_on_where_it_was(place: int) -> None:
    os.makedirs(f"/proc/self/fd/{place}/a/x/y")
    os.mkdir("b", dir_fd=place)
    walk = TreeWalk(place, os.fstat(place).st_dev, os.dup(place), NO_LIMIT, NO_LIMIT)
    walk.count_entries(".")
    for name in ("a", "x"):
        walk.enter(name)

    os.rename("a/x", "b/x", src_dir_fd=place, dst_dir_fd=place)
    walk.leave()

    assert (os.fstat(walk.current).st_ino, walk.restarts) == (os.stat("a", dir_fd=place).st_ino, 1)
    walk.enter("nothing")  # and what it still wants to enter may be gone
    os.rename("a", "b/a", src_dir_fd=place, dst_dir_fd=place)
    walk.leave()
    assert (os.fstat(walk.current).st_ino, walk.restarts) == (os.fstat(place).st_ino, 2)
    os.close(walk.current)


def test_a_tree_that_is_moved_about_neither_breaks_nor_holds_up_a_walk(place: int) -> None:
    for name in ("a", "b"):
        os.mkdir(name, dir_fd=place)
        for number in range(20):
            os.makedirs(f"/proc/self/fd/{place}/{name}/{number}/x/y/z")
    moving, enough = threading.Event(), threading.Event()

    def move() -> None:
        while not enough.is_set():
            for number in range(20):
                os.rename(f"a/{number}/x", f"b/{number}/moved", src_dir_fd=place, dst_dir_fd=place)
                moving.set()
                os.rename(f"b/{number}/moved", f"a/{number}/x", src_dir_fd=place, dst_dir_fd=place)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        moving.wait()
        before = descriptors()
        counts = [usage(place) for _ in range(200)]
        assert descriptors() == before
    finally:
        enough.set()
        mover.join()
    assert all(0 < found.inodes <= 163 + 6 for found in counts)  # some may be met twice, on their way
    assert usage(place).inodes == 163


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every directory")
@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100])
def test_a_directory_that_hides_what_it_has_is_told(place: int, mode: int) -> None:
    os.mkdir("closed", dir_fd=place)
    write(place, "closed/file", MIB)
    os.chmod("closed", mode, dir_fd=place)

    assert usage(place).closed == 1


@contextlib.asynccontextmanager
async def at_work(spawner: Spawner, place: int, code: str) -> AsyncIterator[Sandbox]:
    """A program with this directory as its workspace; gone at the end."""
    who = outer()
    path = os.readlink(f"/proc/self/fd/{place}")
    if who is not None:
        os.chown(place, who.uid, who.gid)
    policy = Policy(interpreter=PYTHON, workspace=path, limits=Limits(inodes=1000))
    argv = (sys.executable, "-I", "-S", "-c", f"import os, signal\nMIB = 1 << 20\n{code}")
    sandbox = await spawner.spawn(plan_sandbox(policy, Program(argv), probe.read_host(), who))
    try:
        yield sandbox
    finally:
        await kill(sandbox)


FILLERS = {
    "files": ("for number in range(8): open(f'{number}', 'wb').write(bytes(MIB))", "disk limit 4M reached"),
    "files without names": (
        "kept = []\n"
        "for number in range(8): kept.append(open('file', 'wb')); kept[-1].write(bytes(MIB)); os.unlink('file')",
        "disk limit 4M reached",
    ),
    "a file in memory's clothes": (
        "fd = os.open('x (deleted)', os.O_CREAT | os.O_WRONLY)\nfor _ in range(8): os.write(fd, bytes(MIB))",
        "disk limit 4M reached",
    ),
    "many empty files": ("for number in range(300): open(f'{number}', 'w')", "inode limit 200 reached"),
}


@pytest.mark.parametrize("what", FILLERS)
async def test_an_agent_that_fills_a_workspace_with_too_much_is_ended(spawner: Spawner, place: int, what: str) -> None:
    code, reason = FILLERS[what]
    said: list[Exceeded] = []
    watcher = DiskWatcher()
    async with at_work(spawner, place, f"{code}\nsignal.pause()") as sandbox, trio.open_nursery() as nursery:
        nursery.start_soon(watcher.serve)

        def end(exceeded: Exceeded) -> None:
            said.append(exceeded)
            sandbox.signal(signal.SIGKILL)

        watcher.add(1, place, 4 * MIB, 200, end, sandbox.pid)
        with trio.fail_after(PATIENCE):
            status = await sandbox.wait()
        nursery.cancel_scope.cancel()

    assert (status.signal, [str(one) for one in said]) == (signal.SIGKILL, [f"{reason} in its workspace"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every directory")
async def test_an_agent_that_keeps_hiding_a_directory_is_ended(
    place: int, autojump_clock: trio.testing.MockClock
) -> None:
    os.mkdir("closed", dir_fd=place)
    os.chmod("closed", 0, dir_fd=place)
    said: list[Exceeded] = []
    watcher = DiskWatcher()
    async with trio.open_nursery() as nursery:

        def end(exceeded: Exceeded) -> None:
            said.append(exceeded)
            nursery.cancel_scope.cancel()

        watcher.add(1, place, MIB, 100, end, os.getpid())
        nursery.start_soon(watcher.serve)

    assert str(said[0]) == "disk limit 1M can't be enforced: not all of it can be counted in its workspace"
    assert trio.current_time() >= MAX_CLOSED_WALKS - 1


def test_a_directory_that_is_closed_now_and_then_is_no_reason_to_end_an_agent(place: int) -> None:
    said: list[Exceeded] = []
    watcher = DiskWatcher()
    watcher.add(1, place, MIB, 100, said.append, os.getpid())
    watched = watcher._watched[1]

    for _ in range(MAX_CLOSED_WALKS):
        for found in (*[Usage(closed=1)] * (MAX_CLOSED_WALKS - 1), Usage()):
            watcher._check_usage(1, watched, found)
    assert said == []

    for _ in range(MAX_CLOSED_WALKS):
        watcher._check_usage(1, watched, Usage(closed=1))
    assert [str(one).partition(":")[0] for one in said] == ["disk limit 1M can't be enforced"]


async def test_what_is_removed_or_cancelled_leaves_no_descriptor(place: int) -> None:
    before = descriptors()
    watcher = DiskWatcher()
    for _ in range(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                watcher.add(1, place, MIB, 100, lambda _: None, os.getpid())
                nursery.start_soon(watcher.serve)
                await trio.lowlevel.checkpoint()
                scope.cancel()
    watcher.remove(1)

    with trio.fail_after(PATIENCE):
        while descriptors() > before:  # an abandoned walk closes what is its own when it is through
            await trio.sleep(0.01)


async def test_a_tmpfs_is_told_from_outside(spawner: Spawner) -> None:
    limits = Limits(disk=3 * MIB + 5, inodes=77)
    sandbox = await spawner.spawn(python("import signal; print(1, flush=True); signal.pause()", limits=limits))
    try:
        await line(sandbox)
        found = [read_tmpfs(pid) for pid in (sandbox.pid, sandbox.program)]
    finally:
        await kill(sandbox)

    assert all(one is not None and (one.size, one.inodes) == (3 * MIB + 4096, 77) for one in found)


def test_the_last_mount_at_a_place_counts() -> None:
    table = [
        "65 64 0:41 / /workspace rw,nosuid,nodev,relatime - tmpfs agent rw,size=4096k,nr_inodes=50,mode=755\n",
        "66 65 8:1 /home/x /workspace rw shared:1 - ext4 /dev/sda1 rw\n",
        "67 64 0:43 / /tmp rw - tmpfs agent rw,mode=755\n",
    ]

    assert find_tmpfs(table[:1], "/workspace") == Tmpfs("rw,size=4096k,nr_inodes=50,mode=755")
    assert find_tmpfs(table, "/workspace") is None
    assert find_tmpfs(table, "/elsewhere") is None
    unlimited = find_tmpfs(table, "/tmp")
    assert unlimited is not None
    assert (unlimited.size, unlimited.inodes) == (None, None)


def test_an_image_tells_its_size(place: int) -> None:
    found = read_image(place)

    assert found.size == os.statvfs("/var/tmp").f_blocks * os.statvfs("/var/tmp").f_frsize


@pytest.mark.parametrize(
    ("usage", "verdict"),
    [
        (Usage(256 * MIB, 100), None),
        (Usage(256 * MIB + 1, 100), "disk limit 256M reached in its workspace"),
        (Usage(0, 101), "inode limit 100 reached in its workspace"),
    ],
)
def test_limits_may_be_used_up_but_not_exceeded(usage: Usage, verdict: str | None) -> None:
    found = exceeded_limit(usage, 256 * MIB, 100)

    assert (str(found) if found else None) == verdict
