# A file in /proc keeps nobody waiting here.
# ruff: file-ignore[ASYNC240]

"""A process that was born before anybody knew what for: as new as any other to who gets it, and gone if nobody does."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from agentos.sandbox.cgroups.discover import Group, discover_here, open_root
from agentos.sandbox.cgroups.values import Limits
from agentos.sandbox.spawner import Spawner
from tests.sandbox.jail import Belongings, a_plan, kill, line, python, run, start_spawner, zygote_closes

FOREVER = "import time; print('here', flush=True); time.sleep(600)"
NAMESPACES = ("user", "pid", "mnt", "net", "uts", "ipc", "cgroup")


def children() -> set[int]:
    """Of this process."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


async def prepare(spawner: Spawner) -> int:
    """The pid of the one that was made ready."""
    before = children()
    await spawner.prepare_spare()
    (ahead,) = children() - before
    return ahead


def namespaces(pid: int) -> dict[str, str]:
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES if name != "pid"}


async def test_who_was_made_ready_is_the_next_program(spawner: Spawner) -> None:
    ahead = await prepare(spawner)

    sandbox = await spawner.spawn(python(FOREVER))

    assert sandbox.pid == ahead
    assert await line(sandbox) == "here\n"
    await kill(sandbox)


async def test_no_namespace_is_used_twice(spawner: Spawner) -> None:
    sandboxes = []
    for _ in range(3):
        await spawner.prepare_spare()
        sandboxes.append(await spawner.spawn(python(FOREVER)))
    sandboxes.append(await spawner.spawn(python(FOREVER)))

    for name in NAMESPACES:
        inodes = {os.fstat(one.namespaces[name]).st_ino for one in sandboxes if name in one.namespaces}
        assert len(inodes) == (len(sandboxes) if name in sandboxes[0].namespaces else 0)
        assert os.stat(f"/proc/self/ns/{name}").st_ino not in inodes
    for sandbox in sandboxes:
        await kill(sandbox)


@pytest.mark.skipif(os.geteuid() != 0, reason="its mount namespace is ours, but it isn't ours to look at")
async def test_it_takes_the_hosts_mounts_as_they_are_when_it_is_used(spawner: Spawner) -> None:
    ahead = await prepare(spawner)

    assert namespaces(ahead)["mnt"] == os.readlink("/proc/self/ns/mnt")
    assert namespaces(ahead)["net"] != os.readlink("/proc/self/ns/net")

    sandbox = await spawner.spawn(python(FOREVER))
    assert namespaces(sandbox.pid)["mnt"] != os.readlink("/proc/self/ns/mnt")
    await kill(sandbox)


async def test_a_program_with_the_hosts_network_is_another(spawner: Spawner) -> None:
    ahead = await prepare(spawner)

    sandbox = await spawner.spawn(python(FOREVER, network=True))
    assert sandbox.pid != ahead
    await kill(sandbox)

    sandbox = await spawner.spawn(python(FOREVER))
    assert sandbox.pid == ahead
    await kill(sandbox)


async def test_one_that_was_killed_meanwhile_is_waited_for_and_another_is_taken(spawner: Spawner) -> None:
    before = Belongings.now()
    ahead = await prepare(spawner)
    pidfd = os.pidfd_open(ahead)
    os.kill(ahead, signal.SIGKILL)
    await trio.lowlevel.wait_readable(pidfd)
    os.close(pidfd)

    assert (await run(spawner, a_plan("/bin/echo", "other"))).out == "other\n"
    assert Belongings.now() == before


async def test_one_that_was_killed_meanwhile_hides_no_stranger(spawner: Spawner) -> None:
    before = Belongings.now()
    ahead = await prepare(spawner)
    pidfd = os.pidfd_open(ahead)
    os.kill(ahead, signal.SIGKILL)
    await trio.lowlevel.wait_readable(pidfd)
    os.close(pidfd)

    assert await spawner.reap_orphans()
    assert Belongings.now() == before


async def test_asking_twice_makes_one(spawner: Spawner) -> None:
    await spawner.prepare_spare()
    before = children()

    await spawner.prepare_spare()

    assert children() == before
    await run(spawner, a_plan("/bin/true"))


async def test_when_the_zygote_has_died_meanwhile_a_program_runs_and_nothing_is_left(spawner: Spawner) -> None:
    before = Belongings.now()
    await spawner.prepare_spare()
    os.kill(spawner.zygote, signal.SIGKILL)

    for text in ("first\n", "second\n"):  # the first may need no zygote
        assert (await run(spawner, a_plan("/bin/echo", text.strip()))).out == text
    assert Belongings.now() == before


async def test_closing_the_spawner_ends_it() -> None:
    before, spawner = Belongings.now(), start_spawner()
    ahead = await prepare(spawner)

    spawner.close()
    await spawner.prepare_spare()

    assert not Path(f"/proc/{ahead}").exists()
    assert Belongings.now() == before


async def test_two_hundred_that_were_made_ready_leave_nothing(spawner: Spawner) -> None:
    steps = a_plan("/bin/sleep", "600")
    await kill(await spawner.spawn(steps))
    before, zygotes = Belongings.now(), len(os.listdir(f"/proc/{spawner.zygote}/fd"))

    for _ in range(200):
        await spawner.prepare_spare()
        await kill(await spawner.spawn(steps))

    assert Belongings.now() == before
    await zygote_closes(spawner, zygotes)


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
        await spawner.prepare_spare()
    ways = group.open_entry()
    before = Belongings.now()

    sandbox = await spawner.spawn(python(FOREVER), cgroup=ways)

    assert group.processes() == {sandbox.pid, sandbox.program}
    await kill(sandbox)
    if not ready:
        assert Belongings.now() == before
    ways.close()
