"""Under control groups of version 2 each waiting jail has a group of its own, which the program gets with the jail."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from agentos.sandbox.cgroups import v2
from agentos.sandbox.cgroups.discover import discover_here, open_root
from agentos.sandbox.cgroups.values import Limits
from agentos.sandbox.errors import SandboxError
from agentos.sandbox.plan import plan_unjailed
from agentos.sandbox.policy import Limits as PolicyLimits
from agentos.sandbox.policy import Program
from agentos.sandbox.report import probe
from agentos.sandbox.start.ahead import MAX_WAITING, TakenJail
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.jail import Belongings, kill, line, python

FOREVER = "import time; print('here', flush=True); time.sleep(600)"
PLAN = python(FOREVER)


@pytest.fixture(scope="module")
def root() -> Iterator[v2.Group]:
    made = open_root(discover_here())
    if not isinstance(made.root, v2.Group):
        if made.root is not None:
            made.root.remove()
        pytest.skip("control groups of version 2 can't be used here; a guest kernel runs this: test_guest.py")
    yield made.root
    made.root.kill()
    made.root.remove()


@pytest.fixture
async def around(spawner: Spawner, root: v2.Group) -> AsyncIterator[v2.Group]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spawner.builder.serve, root)
        await trio.testing.wait_all_tasks_blocked()
        yield root
        await spawner.builder._kill_all(spawner.builder._waiting.take_all())
        nursery.cancel_scope.cancel()
    assert groups_in(root) == set()


def groups_in(group: v2.Group) -> set[str]:
    return {entry.name for entry in Path(group.directory).iterdir() if entry.is_dir()} - {"self"}


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().rpartition("\n0::")[2].removeprefix("0::").strip()


async def take(spawner: Spawner) -> tuple[TakenJail, v2.Group]:
    """Build a jail, and take it."""
    await spawner.builder.build(PLAN)
    taken = await spawner.builder.take(PLAN, with_group=True)
    assert taken is not None
    assert taken.group is not None
    return taken, taken.group


async def test_the_program_is_in_the_group_in_which_its_jail_waited(spawner: Spawner, around: v2.Group) -> None:
    taken, group = await take(spawner)
    limited = group.limit(Limits(memory=64 << 20, pids=20, cpu=0.5, weight=50))
    entry = limited.open_entry()

    sandbox = await spawner.spawn(PLAN, cgroup=entry, taken=taken)

    assert sandbox.pid == taken.process.pid
    assert await line(sandbox) == "here\n"
    assert limited.processes() == {sandbox.pid, sandbox.program}
    assert group_of(sandbox.pid) == group_of(sandbox.program)
    assert group_of(sandbox.pid).endswith(f"/{os.path.basename(group.directory)}/self")
    assert limited.read_limits() == limited.enforced
    assert limited.enforced.memory == 64 << 20
    await spawner.builder.end_unused(taken)  # no effect on one that was used
    assert sandbox.status is None
    await kill(sandbox)
    entry.close()
    limited.remove()


async def test_what_it_had_copied_while_it_waited_counts(spawner: Spawner, around: v2.Group) -> None:
    taken, group = await take(spawner)

    used = group.usage().memory

    assert used is not None
    assert used > 0
    await spawner.builder.end_unused(taken)
    group.remove()


async def test_a_limit_below_what_it_has_ends_it_and_shows_why(spawner: Spawner, around: v2.Group) -> None:
    taken, group = await take(spawner)
    limited = group.limit(Limits(memory=4096))
    entry = limited.open_entry()

    with pytest.raises(SandboxError):
        await spawner.spawn(PLAN, cgroup=entry, taken=taken)

    assert limited.evidence().out_of_memory
    entry.close()
    limited.kill()
    limited.remove()


async def test_one_that_is_not_used_leaves_nothing_but_its_group(spawner: Spawner, around: v2.Group) -> None:
    await spawner.builder.build(PLAN)
    await spawner.builder._kill_all(spawner.builder._waiting.take_all())
    before = Belongings.now()
    taken, group = await take(spawner)

    await spawner.builder.end_unused(taken)

    assert Belongings.now() == before
    assert group.remove_empty()


async def test_others_never_get_one_that_waits_in_a_group(spawner: Spawner, around: v2.Group) -> None:
    await spawner.builder.build(PLAN)
    (waiting,) = spawner.builder._waiting.jails

    sandbox = await spawner.spawn(PLAN)

    assert sandbox.pid != waiting.process.pid
    assert group_of(sandbox.pid) == group_of(os.getpid())
    await kill(sandbox)


async def test_a_zygote_that_dies_between_costs_the_jail_but_not_the_program(
    spawner: Spawner, around: v2.Group
) -> None:
    taken, group = await take(spawner)
    entry = group.open_entry()
    os.kill(spawner.zygote.pid, signal.SIGKILL)

    sandbox = await spawner.spawn(PLAN, cgroup=entry, taken=taken)

    is_root = os.geteuid() == 0  # without, the zygote has no part in what the jail has yet to do
    assert (sandbox.pid != taken.process.pid) == is_root
    assert group.processes() == {sandbox.pid, sandbox.program}
    await kill(sandbox)
    entry.close()
    assert group.remove_empty()


async def test_no_more_groups_wait_than_jails(spawner: Spawner, around: v2.Group) -> None:
    for _ in range(MAX_WAITING + 2):
        await spawner.builder.build(PLAN)

    assert len(groups_in(around)) == MAX_WAITING


async def test_the_group_of_one_that_ended_while_it_waited_is_removed(spawner: Spawner, around: v2.Group) -> None:
    await spawner.builder.build(PLAN)
    (waiting,) = spawner.builder._waiting.jails
    os.kill(waiting.process.pid, signal.SIGKILL)
    await trio.lowlevel.wait_readable(waiting.process.pidfd)
    assert await spawner.reap_orphans()
    assert spawner.builder._waiting.jails == []

    await spawner.builder.build(PLAN)

    (other,) = spawner.builder._waiting.jails
    assert other.group is not None
    assert groups_in(around) == {os.path.basename(other.group.directory)}


async def test_programs_without_a_jail_have_no_process_that_waits(spawner: Spawner, around: v2.Group) -> None:
    await spawner.builder.build(plan_unjailed(Program(("true",), {}, "/"), probe.read_host(), PolicyLimits()))

    assert spawner.builder._waiting.jails == []
    assert groups_in(around) == set()
