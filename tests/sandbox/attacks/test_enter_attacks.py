"""A hostile program that waits for somebody to come in beside it, and what it can't do to them."""

import json
from collections.abc import Sequence

import pytest
import trio

from agentos.sandbox import steps as s
from agentos.sandbox.errors import SandboxError
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.steps import Step
from tests.sandbox import jail
from tests.sandbox.attacks.test_enter import beside
from tests.sandbox.jail import Belongings, kill, line, python
from tests.support.wire import PATIENCE

# It knows those that are still ours by their command line, which is the zygote's until they exec. What it got before
# that look, it got from one of ours.
SPY = """
import json, os, resource
READ = ['mem', 'environ', 'maps', 'smaps', 'auxv', 'io', 'stack', 'syscall', 'timerslack_ns', 'pagemap', 'map_files']
LINK = ['root', 'cwd', 'exe', *(f'fd/{n}' for n in range(9)), *(f'ns/{name}' for name in os.listdir('/proc/self/ns'))]
LIST = ['fd', 'fdinfo', 'map_files', 'ns', 'root', 'cwd', 'task/{}/fd', 'root/tmp']
WRITE = ['mem', 'oom_score_adj', 'coredump_filter', 'clear_refs', 'comm', 'uid_map', 'gid_map', 'setgroups', 'sched']

def read(path):  # the file is closed also where it can't be read: it looks thousands of times
    with open(path, 'rb', 0) as file: return file.read(1)

def attempts(pid):
    place = f'/proc/{pid}/'
    for name in READ: yield name, lambda: read(place + name)
    for name in LINK: yield name, lambda: os.readlink(place + name)
    for name in LIST: yield name, lambda: os.listdir(place + name.format(pid))
    for name in WRITE: yield 'write ' + name, lambda: os.open(place + name, os.O_WRONLY)
    yield 'open root', lambda: os.open(place + 'root', os.O_PATH | os.O_DIRECTORY)
    yield 'open fd/3', lambda: os.open(place + 'fd/3', os.O_RDWR)
    yield 'raised limits', lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))

def mounted(pid):
    return {row.split()[4] for row in open(f'/proc/{pid}/mountinfo')}

def connected(pid):
    try: return {row.split(':')[0].strip() for row in open(f'/proc/{pid}/net/dev')}
    except OSError: return set()

def ours(pid):
    try: return open(f'/proc/{pid}/cmdline', 'rb').read().rstrip(b'\\0') == b'agentos-init'
    except OSError: return False

seen, won, foreign, devices = set(), set(), set(), set()
mine = mounted('self'), connected('self')
print('here', flush=True)
while len(seen) < 50:
    for pid in [int(name) for name in os.listdir('/proc') if name.isdigit()]:
        if pid in (1, os.getpid()): continue
        for what, attempt in attempts(pid):
            try: got = attempt() or True
            except (OSError, ValueError): got = None
            if isinstance(got, int) and got > 2: os.close(got)
            if not ours(pid): break
            seen.add(pid)
            if got: won.add(what)
        try: foreign |= mounted(pid) - mine[0]
        except OSError: continue
        devices |= connected(pid) - mine[1]
print(json.dumps([len(seen), sorted(won), sorted(foreign), sorted(devices)]), flush=True)
import time; time.sleep(600)
"""

HARASS = """
import os, sys
number = int(sys.argv[1])
print('here', flush=True)
while True:
    for pid in [int(name) for name in os.listdir('/proc') if name.isdigit()]:
        if pid not in (1, os.getpid()):
            try: os.kill(pid, number)
            except OSError: pass
"""


def without_landlock(steps: Sequence[Step]) -> list[Step]:
    """As on a host that has none: it would keep them apart by itself."""
    return [step for step in steps if not isinstance(step, s.Landlock)]


@pytest.mark.parametrize("landlock", [True, False])
async def test_an_entering_process_cant_be_looked_into_written_to_or_robbed(spawner: Spawner, landlock: bool) -> None:
    kept = list if landlock else without_landlock
    agent = await spawner.spawn(kept(python(SPY)))
    assert await line(agent) == "here\n"
    entered = 0
    found = b""

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def hear() -> None:
                nonlocal found
                found = (await line(agent)).encode()
                nursery.cancel_scope.cancel()

            nursery.start_soon(hear)
            while True:
                assert (await jail.ended(await spawner.enter(agent, kept(beside("/bin/true"))))).status.code == 0
                entered += 1

    seen, won, foreign, devices = json.loads(found)
    assert seen >= 50
    assert won == []
    assert foreign == [], "mounts that the agent hasn't got"
    assert devices == [], "a network that isn't the agent's"
    await kill(agent)


async def test_a_process_killed_on_the_way_in_is_an_error_and_leaves_nothing(spawner: Spawner) -> None:
    agent = await spawner.spawn(without_landlock(python(HARASS, "9")))
    assert await line(agent) == "here\n"
    before = Belongings.now()
    errors = 0

    with trio.fail_after(PATIENCE):
        while errors < 20:
            try:
                await jail.ended(await spawner.enter(agent, without_landlock(beside("/bin/true"))))
            except SandboxError:
                errors += 1

    assert Belongings.now() == before
    assert agent.status is None
    with trio.fail_after(PATIENCE):
        await kill(agent)  # which would wait for whoever wasn't waited for


async def test_a_process_stopped_on_the_way_in_can_be_given_up(spawner: Spawner) -> None:
    agent = await spawner.spawn(without_landlock(python(HARASS, "19")))
    assert await line(agent) == "here\n"
    before = Belongings.now()
    given_up = 0

    with trio.fail_after(PATIENCE):
        while given_up < 10:
            with trio.move_on_after(0.1) as scope:
                await kill(await spawner.enter(agent, without_landlock(beside("/bin/sleep", "600"))))
            given_up += scope.cancelled_caught

    assert Belongings.now() == before
    with trio.fail_after(PATIENCE):
        await kill(agent)
