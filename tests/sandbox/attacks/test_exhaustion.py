"""What a hostile program tries to use up."""

import sys

import pytest

from agentos.sandbox.plan import plan_entry, plan_sandbox
from agentos.sandbox.policy import MIB, Limits, Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.attacks.test_attacks import PRELUDE, attack
from tests.sandbox.jail import PYTHON, SDK, ended, kill, line, outer, run


async def test_forks_files_and_places_come_to_an_end(spawner: Spawner) -> None:
    code = """
def until(function):
    for number in range(20000):
        try: function(number)
        except OSError as error: return number, errno.errorcode[error.errno]
def fork(_):
    if os.fork() == 0:
        import time; time.sleep(600)
print(*until(fork))
print(*until(lambda _: os.dup(0)))
print(*until(lambda number: open(f'/tmp/{number}', 'w').close()))
"""
    limits = Limits(max_pids=20, open_files=100, inodes=50)
    forks, files, inodes = (row.split() for row in await attack(spawner, code, limits=limits))

    assert (int(forks[0]) <= 20, forks[1]) == (True, "EAGAIN")
    assert (int(files[0]) <= 100, files[1]) == (True, "EMFILE")
    assert (int(inodes[0]) <= 50, inodes[1]) == (True, "EMFILE") or inodes[1] == "ENOSPC"


@pytest.mark.parametrize("place", ["/tmp", "/workspace", "/dev/shm"])
async def test_a_disk_is_filled_up_to_its_size_and_no_further(spawner: Spawner, place: str) -> None:
    code = """
fd = os.open(sys.argv[1] + '/big', os.O_CREAT | os.O_WRONLY)
print(attempt(os.posix_fallocate, fd, 0, 6 << 20))
"""
    limits = Limits(tmp=4 * MIB, disk=4 * MIB)
    assert await attack(spawner, code, place, limits=limits) == ["ENOSPC"]


async def test_a_file_doesnt_grow_beyond_its_limit(spawner: Spawner) -> None:
    code = "fd = os.open('/tmp/big', os.O_CREAT | os.O_WRONLY); print(attempt(os.ftruncate, fd, 3 << 20))"
    assert await attack(spawner, code, limits=Limits(file_size=MIB)) == ["EFBIG"]


async def test_descriptors_that_one_agent_keeps_under_way_keep_no_other_of_its_user_from_starting(
    spawner: Spawner,
) -> None:
    park = """
import array, time
null, ends = os.open('/dev/null', os.O_RDONLY), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [null] * 50))]
def until_refused():
    while True:
        ends[0].sendmsg([b'x'], rights)
print(attempt(until_refused), flush=True)
time.sleep(600)
"""
    limits, who = Limits(open_files=100), outer()
    policy = Policy(interpreter=PYTHON, sdk=SDK, limits=limits)
    hello = Program(("/bin/sh", "-c", "echo hello"), {}, "/workspace")
    parks = Program((sys.executable, "-I", "-S", "-c", PRELUDE + park), {}, "/workspace")
    parker = await spawner.spawn(plan_sandbox(policy, parks, probe.read_host(), who))
    assert await line(parker) == "ETOOMANYREFS\n"

    spawned = await run(spawner, plan_sandbox(policy, hello, probe.read_host(), who))
    entered = await ended(await spawner.enter(parker, plan_entry(policy, hello, probe.read_host())))

    assert (spawned.out, entered.out) == ("hello\n", "hello\n")
    await kill(parker)
