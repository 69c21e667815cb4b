"""Real processes, real time."""

import os
import sys
from pathlib import Path

import pytest
import trio

from supervisors import ChildSpec, Exit, Process, StartFailed, SupervisorError, SupervisorSpec
from supervisors.reports import ChildEnded, ChildStarted, ChildTerminated
from tests.supervisors.puppets import Owner, start_owner

PATIENCE = 60  # seconds before a test is given up; they take well under one


def python(script: str) -> Process:
    return Process([sys.executable, "-S", "-c", script])


def gone(pid: int) -> bool:
    """Not even a zombie of ours is left."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def ending_of(nursery: trio.Nursery, process: Process) -> Exit:
    """How a process ends if nobody asks it to."""
    ended: list[Exit] = []
    done = trio.Event()

    def observe(report: object) -> None:
        if isinstance(report, ChildEnded):
            ended.append(report.exit)
            done.set()

    owner = Owner(SupervisorSpec([ChildSpec("p", process, restart="temporary")]), observe)
    with trio.fail_after(PATIENCE):
        await nursery.start(owner.run)
        await done.wait()
    owner.supervisor.stop()
    return ended[0]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("pass", "normal"),
        ("raise SystemExit(3)", "crash: exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", "crash: SIGKILL"),
        ("import os; os.kill(os.getpid(), 15)", "crash: SIGTERM"),
    ],
)
async def test_how_a_process_ends_is_told(nursery: trio.Nursery, script: str, expected: str) -> None:
    assert str(await ending_of(nursery, python(script))) == expected


async def test_a_program_that_is_not_there_is_a_failed_start(nursery: trio.Nursery) -> None:
    owner = await start_owner(nursery, SupervisorSpec())

    with pytest.raises(SupervisorError) as failed:
        await owner.supervisor.start_child(ChildSpec("p", Process(["/no/such/program"])))

    assert isinstance(failed.value, StartFailed)
    assert isinstance(failed.value.cause, FileNotFoundError)
    owner.supervisor.stop()


async def test_a_process_that_cannot_be_waited_for_is_not_kept(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def out_of_descriptors(pid: int) -> int:
        pids.append(pid)
        raise OSError("too many open files")

    monkeypatch.setattr(os, "pidfd_open", out_of_descriptors)
    owner = await start_owner(nursery, SupervisorSpec())

    with pytest.raises(StartFailed, match="too many open files"):
        await owner.supervisor.start_child(ChildSpec("p", Process(["sleep", "1000"])))

    assert [gone(pid) for pid in pids] == [True]
    owner.supervisor.stop()


async def test_stopping_a_process_is_a_sigterm_and_the_process_is_reaped(nursery: trio.Nursery) -> None:
    owner = await start_owner(nursery, SupervisorSpec([ChildSpec("p", Process(["sleep", "1000"]))]))
    pid = owner.supervisor.children()[0].child
    assert isinstance(pid, int)
    assert not gone(pid)

    with trio.fail_after(PATIENCE):
        await owner.supervisor.terminate_child("p")

    assert owner.told(ChildTerminated)[0].exit == Exit("shutdown")
    assert gone(pid)
    owner.supervisor.stop()


async def test_a_stopped_process_is_continued_to_be_stopped(nursery: trio.Nursery, tmp_path: Path) -> None:
    left = tmp_path / "left"
    program = ["sh", "-c", f"trap 'touch {left}; exit' TERM; kill -STOP $$; sleep 1000"]
    owner = await start_owner(nursery, SupervisorSpec([ChildSpec("p", Process(program), shutdown=PATIENCE)]))
    pid = owner.supervisor.children()[0].child
    with trio.fail_after(PATIENCE):
        while (await trio.Path(f"/proc/{pid}/stat").read_text()).rpartition(")")[2].split()[0] != "T":
            await trio.lowlevel.checkpoint()

        await owner.supervisor.terminate_child("p")

    assert await trio.Path(left).exists()
    owner.supervisor.stop()


async def test_a_process_that_ignores_sigterm_is_killed_after_its_seconds_with_its_whole_group(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    fifo = tmp_path / "ready"
    os.mkfifo(fifo)
    script = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = os.fork()
if grandchild:
    with open({str(fifo)!r}, "w") as ready:
        ready.write(str(grandchild))
time.sleep(1000)
"""
    owner = await start_owner(nursery, SupervisorSpec([ChildSpec("p", python(script), shutdown=0.3)]))
    with trio.fail_after(PATIENCE):
        grandchild = int(await trio.Path(fifo).read_text())
        leader = owner.supervisor.children()[0].child
        assert isinstance(leader, int)
        group = os.pidfd_open(grandchild)

        asked = trio.current_time()
        await owner.supervisor.terminate_child("p")

        assert owner.told(ChildTerminated)[0].exit == Exit("killed")
        assert trio.current_time() - asked >= 0.3
        assert gone(leader)
        await trio.lowlevel.wait_readable(group)  # its pidfd says that it has ended, whoever reaps it
    os.close(group)
    owner.supervisor.stop()


async def test_what_a_process_leaves_in_its_group_dies_with_it(nursery: trio.Nursery, tmp_path: Path) -> None:
    fifo = tmp_path / "ready"
    os.mkfifo(fifo)
    script = f"""
import os, time
grandchild = os.fork()
if not grandchild:
    time.sleep(1000)
with open({str(fifo)!r}, "w") as ready:
    ready.write(str(grandchild))
with open({str(fifo)!r}) as go:
    go.read()
"""
    owner = await start_owner(nursery, SupervisorSpec([ChildSpec("p", python(script), restart="temporary")]))
    with trio.fail_after(PATIENCE):
        pidfd = os.pidfd_open(int(await trio.Path(fifo).read_text()))
        await trio.Path(fifo).write_text("")
        await trio.lowlevel.wait_readable(pidfd)
    os.close(pidfd)
    owner.supervisor.stop()


async def test_a_cancelled_supervisor_leaves_no_process_behind(nursery: trio.Nursery) -> None:
    children = [ChildSpec(f"p{number}", Process(["sleep", "1000"])) for number in range(3)]
    owner = await start_owner(nursery, SupervisorSpec(children))
    pids = [info.child for info in owner.supervisor.children()]

    owner.scope.cancel()
    with trio.fail_after(PATIENCE):
        await owner.supervisor.wait()

    assert [gone(pid) for pid in pids if isinstance(pid, int)] == [True] * 3


async def test_a_crashing_process_is_restarted_as_another(nursery: trio.Nursery) -> None:
    pids: list[object] = []
    back = trio.Event()

    def observe(report: object) -> None:
        if isinstance(report, ChildStarted):
            pids.append(report.value)
            if len(pids) == 2:
                back.set()

    owner = Owner(SupervisorSpec([ChildSpec("p", Process(["sleep", "1000"]))]), observe)
    with trio.fail_after(PATIENCE):
        await nursery.start(owner.run)
        os.kill(int(str(pids[0])), 9)
        await back.wait()

    before, after = (int(str(pid)) for pid in pids)
    assert (gone(before), gone(after)) == (True, False)
    owner.supervisor.stop()


def test_a_command_line_in_one_string_is_refused() -> None:
    with pytest.raises(ValueError, match="one string each"):
        Process("sleep 1000")
