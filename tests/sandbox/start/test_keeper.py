"""A program without walls whose keeper ends all that it starts, however far that goes away."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from agentos.sandbox import sandbox as sandbox_module
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.inside.keeper import list_descendants
from agentos.sandbox.plan import plan_unjailed
from agentos.sandbox.policy import Program
from agentos.sandbox.report import probe
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.status import Status
from agentos.sandbox.steps import Step
from tests.sandbox import jail
from tests.sandbox.jail import Belongings, kill, line, run, start_spawner
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

PATH = {"PATH": "/usr/bin:/bin"}
AWAY = "(env -i setsid sleep 1000 & echo $!; wait) & exec >/dev/null 2>&1;"
"""In a session, a group and an environment of its own, and soon without its parent; says its pid."""


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    """A running spawner, on whatever host: no walls, nothing that it must be able to do."""
    spawner = start_spawner()
    yield spawner
    spawner.close()


def kept(*argv: str, stdin: bytes = b"") -> tuple[Step, ...]:
    return plan_unjailed(Program(argv, PATH, "/", stdin=stdin), probe.read_host(), None, keeper=True)


def shell(text: str) -> tuple[Step, ...]:
    return kept("bash", "-c", text)


def state(pid: int) -> str:
    """As ps has it; Z where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def lives(pid: int) -> bool:
    return state(pid) != "Z"


async def test_status_output_and_input_are_the_programs(spawner: Spawner) -> None:
    ended = await run(spawner, kept("sh", "-c", "cat; echo err >&2; exit 3", stdin=b"in\n"))

    assert ended == jail.Ended(Status(3, None), "in\n", "err\n")
    assert (await run(spawner, shell("kill -TERM $$"))).status == Status(None, signal.SIGTERM)


async def test_what_it_leaves_ends_with_it(spawner: Spawner) -> None:
    ended = await run(
        spawner, shell("env -i setsid sh -c 'sleep 1000 & echo $!' & wait; env -i setsid sleep 1000 & echo $!")
    )

    pids = list(map(int, ended.out.split()))
    assert (len(pids), ended.status) == (2, Status(0, None))
    assert not any(map(lives, pids))


async def test_kill_ends_all_of_them(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(shell(f"trap '' TERM HUP INT; {AWAY} sleep 1000; sleep 1000"))
    away = int(await line(sandbox))
    everybody = [*list_descendants(sandbox.pid), away]

    await kill(sandbox)

    assert sandbox.status == Status(None, signal.SIGKILL)
    assert not any(map(lives, everybody))


async def test_a_keeper_that_is_stopped_does_its_work_all_the_same(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(shell(f"kill -STOP $PPID; {AWAY} sleep 1000"))
    away = int(await line(sandbox))

    await kill(sandbox)

    assert not lives(away)


async def test_where_the_keeper_does_nothing_we_do_its_work(spawner: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "KEEPER_TIMEOUT", 0.2)
    harass = "import os, signal\nwhile True: os.kill(int(os.environ['K']), signal.SIGSTOP)"
    more = '(setsid env K=$PPID python3 -c "$0" &)'
    sandbox = await spawner.spawn(kept("bash", "-c", f"{more}; {more}; {AWAY} sleep 1000", harass))
    away = int(await line(sandbox))
    await jail.becomes(lambda: state(sandbox.pid), "T")

    with trio.fail_after(PATIENCE):
        await kill(sandbox)

    assert not lives(away)


async def test_a_signal_reaches_the_programs_group_and_not_the_keeper(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(shell("trap 'echo heard; exit 5' USR1; echo ready; while :; do sleep 0.01; done"))
    assert await line(sandbox) == "ready\n"

    sandbox.signal(signal.SIGUSR1)

    ended = await jail.ended(sandbox)
    assert (ended.status, ended.out) == (Status(5, None), "heard\n")


async def test_it_obeys_no_signal_of_a_process_that_it_keeps(spawner: Spawner) -> None:
    ended = await run(
        spawner, shell("for s in TERM INT HUP USR1 RTMIN+1; do kill -$s $PPID; done; sleep 0.1; echo alive")
    )

    assert (ended.out, ended.status) == ("alive\n", Status(0, None))


async def test_a_frozen_one_stands_still_with_all_of_them(spawner: Spawner) -> None:
    sandbox = await spawner.spawn(shell(f"{AWAY} while :; do :; done"))
    away = int(await line(sandbox))

    def states() -> set[str]:
        return set(map(state, (*list_descendants(sandbox.pid), away)))

    sandbox.freeze()
    await jail.becomes(states, {"T"})
    sandbox.thaw()
    await jail.becomes(lambda: "T" in states(), False)
    await kill(sandbox)


async def test_killing_the_process_that_started_it_ends_all_processes_in_it(spawner: Spawner) -> None:
    code = """
import trio
from agentos.sandbox.start.spawner import Spawner
from tests.sandbox.start.test_keeper import AWAY, line, shell
async def main(spawner):
    sandbox = await spawner.spawn(shell(AWAY + "trap '' TERM; sleep 1000; sleep 1000"))
    print(sandbox.pid, await line(sandbox), flush=True)
    await trio.sleep_forever()
trio.run(main, Spawner.start())
"""
    process = await trio.lowlevel.open_process([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with trio.fail_after(PATIENCE):
        pidfds = [os.pidfd_open(int(pid)) for pid in (await process.stdout.receive_some()).split()]

        process.kill()
        await jail.gone(pidfds)
        await process.wait()


async def test_what_cannot_be_run_is_said_and_leaves_nothing(spawner: Spawner) -> None:
    await run(spawner, kept("true"))
    before = Belongings.now()

    with pytest.raises(StepFailed, match="/no/such: No such file or directory"):
        await spawner.spawn(kept("/no/such"))

    assert Belongings.now() == before


async def test_many_of_them_leave_nothing(spawner: Spawner) -> None:
    await run(spawner, kept("true"))
    before = Belongings.now()

    for _ in range(rounds(5)):
        await run(spawner, shell("(setsid sleep 1000 &)"))

    assert Belongings.now() == before


def test_descendants_are_found_without_a_look_at_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a look takes longer than a process needs that forks another one and goes."""
    listed, listdir = list[object](), os.listdir

    def note(path: str) -> list[str]:
        listed.append(path)
        return listdir(path)

    with subprocess.Popen(["sh", "-c", "sleep 1000 & echo on; wait"], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"on\n"
        monkeypatch.setattr(os, "listdir", note)
        found = list_descendants(program.pid)
        assert "/proc" not in listed

        monkeypatch.setattr(os.path, "exists", lambda path: False)  # as without CONFIG_PROC_CHILDREN
        assert list_descendants(program.pid) == found
        assert "/proc" in listed
        for pid in (program.pid, *found):
            os.kill(pid, signal.SIGKILL)
    assert len(found) == 1
