# A file in /proc or /tmp keeps nobody waiting here.
# ruff: file-ignore[ASYNC240]

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from agentos.sandbox.errors import SandboxError
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox import jail
from tests.sandbox.jail import SDK, Belongings, a_plan, kill, line, python, run, start_spawner
from tests.support.kernel import until
from tests.support.wire import PATIENCE

FOREVER = "import time; print('here', flush=True); time.sleep(600)"


async def test_a_dead_zygote_is_replaced_and_takes_no_sandbox_with_it(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(python(FOREVER))
    assert await line(sandbox) == "here\n"
    former = spawner.zygote.pid

    os.kill(former, signal.SIGKILL)
    ended = await run(spawner, a_plan("/bin/echo", "again"))

    assert ended.out == "again\n"
    assert spawner.zygote.pid != former
    assert sandbox.status is None
    assert Path(f"/proc/{sandbox.program}").exists()
    await kill(sandbox)


@pytest.fixture
def impatient(spawner: Spawner) -> Iterator[Spawner]:
    """One that gives its zygote 5 s."""
    impatient = Spawner.start(zygote_timeout=5)
    yield impatient
    impatient.close()


async def test_a_zygote_that_hangs_is_replaced_and_the_log_says_what_took_too_long(
    impatient: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    former = impatient.zygote.pid

    os.kill(former, signal.SIGSTOP)

    assert (await run(impatient, a_plan("/bin/echo", "again"))).out == "again\n"
    assert impatient.zygote.pid != former
    (said,) = caplog.messages
    assert "the zygote, which starts all agents, took longer than 5 s to clone a process" in said
    assert "set a longer zygote_timeout under [kernel]" in said


async def test_a_zygote_that_is_slow_is_not_replaced_before_its_time(spawner: Spawner) -> None:
    slow = spawner.zygote.pid

    os.kill(slow, signal.SIGSTOP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, spawner, a_plan("/bin/true"))
        await trio.testing.wait_all_tasks_blocked()
        os.kill(slow, signal.SIGCONT)

    assert spawner.zygote.pid == slow


DIES = """
import os, select, signal, socket, sys
from agentos.sandbox.start import handshake
from agentos.sandbox.inside.janitor import Cleanup
from agentos.sandbox.start.zygote import Zygote
zygote, (_, child_end) = Zygote.start(), handshake.open_control_socket()
socket.send_fds(zygote._channel, [b'{"clone": 0}'], [child_end.fileno()])
select.select([zygote._channel], [], [])  # the answer stays unread
os.kill(zygote.pid, signal.SIGSTOP)
zygote.set_cleanup(Cleanup(directories=(sys.argv[1],)))
print(zygote.pid, flush=True)
os._exit(0)
"""


def test_what_a_kernel_asked_for_last_is_cleaned_up_if_it_dies_with_an_unread_answer(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    dead = subprocess.run([sys.executable, "-c", DIES, place], check=True, stdout=subprocess.PIPE)

    os.kill(int(dead.stdout), signal.SIGCONT)

    until(lambda: not place.exists(), "the directory is removed")


def test_a_zygote_that_is_not_ready_in_time_says_what_to_set() -> None:
    before = Belongings.now()
    with pytest.raises(SandboxError, match=r"not ready within 0\.001 s: on a slow host set a longer zygote_timeout"):
        Spawner.start(zygote_timeout=0.001)

    assert Belongings.now() == before


def test_the_zygote_holds_nothing_of_ours(spawner: Spawner) -> None:
    place = Path("/proc", str(spawner.zygote.pid))
    links = [os.readlink(entry) for entry in place.joinpath("fd").iterdir()]

    assert place.joinpath("environ").read_bytes() == b""
    assert len([link for link in links if link.startswith("socket:")]) == 1
    assert len(links) <= 4
    assert len(os.listdir(place / "task")) == 1


async def test_a_closed_spawner_says_so() -> None:
    spawner = start_spawner()
    spawner.close()

    with pytest.raises(SandboxError, match="closed"):
        await spawner.spawn(a_plan("/bin/true"))


async def test_killing_the_process_that_spawned_them_leaves_nothing(spawner: Spawner) -> None:
    code = """
import os, sys, trio
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.jail import line, python
async def main(spawner):
    program = 'import os, time; os.fork(); print(1, flush=True); time.sleep(600)'
    sandboxes = [await spawner.spawn(python(program)) for _ in range(3)]
    for sandbox in sandboxes: await line(sandbox)
    await spawner.builder.build(python(program))
    children = open(f'/proc/self/task/{os.getpid()}/children').read().split()
    print(*children, *(one.program for one in sandboxes), flush=True)
    await trio.sleep_forever()
trio.run(main, Spawner.start())
"""
    process = await trio.to_thread.run_sync(
        lambda: subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(SDK).parents[1])
    )
    assert process.stdout is not None
    with trio.fail_after(PATIENCE):
        pids = [int(pid) for pid in (await trio.to_thread.run_sync(process.stdout.readline)).split()]
        assert len(pids) == 8, "the zygote, three with a program each, and one that was built ahead"
        pidfds = [os.pidfd_open(pid) for pid in pids]

        process.kill()
        await jail.gone(pidfds)
    process.stdout.close()
    process.wait()


async def test_with_too_many_files_open_a_spawn_fails_and_the_next_one_works(spawner: Spawner) -> None:
    before = Belongings.now()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    steps = a_plan("/bin/true")
    refused = 0

    for room in range(16):
        fillers = [os.dup(0) for _ in range(200)]  # so that no number below is free
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1 + room, hard))
        try:
            await jail.ended(await spawner.spawn(steps))
        except (SandboxError, OSError) as error:
            assert "oo many" in str(error)
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                os.close(filler)

    assert refused > 0
    assert Belongings.now() == before
    assert (await run(spawner, a_plan("/bin/echo", "again"))).out == "again\n"
