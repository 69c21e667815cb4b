"""Sandboxes for tests: plans of this host's, programs in them, and what they left behind."""

import contextlib
import gc
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import trio
from attrs import frozen

import agentos_sdk
from agentos.sandbox.errors import StepFailed
from agentos.sandbox.plan import plan_sandbox
from agentos.sandbox.policy import Interpreter, Policy, Program
from agentos.sandbox.report import probe
from agentos.sandbox.sandbox import Sandbox
from agentos.sandbox.start.closer import Closer
from agentos.sandbox.start.spawner import Spawner
from agentos.sandbox.status import Status
from agentos.sandbox.steps import Step
from agentos_sdk.values import HostIds
from tests.support.wire import PATIENCE

T = TypeVar("T")

PYTHON = Interpreter(sys.executable, sys.prefix, sys.base_prefix)
SDK = str(Path(agentos_sdk.__file__).parent)
_UIDS = itertools.count(1610612736 + 60000)


@frozen
class Ended:
    """How a program ended, and what it wrote."""

    status: Status
    out: str
    err: str


def outer() -> HostIds | None:
    """Somebody else each time with root, and nobody to choose without."""
    if os.geteuid() != 0:
        return None
    uid = next(_UIDS)
    return HostIds(uid, uid)


def a_plan(*argv: str, env: dict[str, str] | None = None, cwd: str = "/workspace", **policy: Any) -> tuple[Step, ...]:
    """A plan for this host, with this Python inside."""
    given = {"interpreter": PYTHON, "sdk": SDK, **policy}
    return plan_sandbox(Policy(**given), Program(argv, env or {}, cwd), probe.read_host(), outer())


def python(code: str, *arguments: str, **policy: Any) -> tuple[Step, ...]:
    """A plan that runs this code."""
    return a_plan(sys.executable, "-I", "-S", "-c", code, *arguments, **policy)


def start_spawner() -> Spawner:
    """A spawner whose closing of descriptors :class:`Belongings` waits for."""
    spawner = Spawner.start()
    Belongings.closers.append(spawner.closer)
    return spawner


async def run(spawner: Spawner, steps: Sequence[Step]) -> Ended:
    """Spawn, read all that it writes, wait."""
    return await ended(await spawner.spawn(steps))


async def ended(sandbox: Sandbox) -> Ended:
    written: dict[str, str] = {}

    async def read(name: str, fd: int) -> None:
        async with trio.lowlevel.FdStream(fd) as stream:
            written[name] = b"".join([part async for part in stream]).decode()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "out", sandbox.stdout)
        nursery.start_soon(read, "err", sandbox.stderr)
        status = await sandbox.wait()
    return Ended(status, written["out"], written["err"])


async def line(sandbox: Sandbox) -> str:
    """The next that it writes."""
    await trio.lowlevel.wait_readable(sandbox.stdout)
    return os.read(sandbox.stdout, 65536).decode()


async def kill(sandbox: Sandbox) -> None:
    await sandbox.kill()
    os.close(sandbox.stdout)
    os.close(sandbox.stderr)


def child_of(pid: int) -> int:
    """The pid of its only child; 0 if it has none yet."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text() or 0)


def maps_files(spawner: Spawner, directory: Path) -> bool:
    """Whether files there can be shown as somebody else's: found out by doing it. Nobody else may enter it."""

    async def trial() -> Ended:
        return await run(spawner, a_plan("/bin/true", code=str(directory)))

    try:
        return trio.run(trial).status == Status(0, None)
    except StepFailed as failure:
        if "can't be mapped" not in str(failure):
            raise
        return False


async def zygote_closes(spawner: Spawner, files: int) -> None:
    """Return when the zygote has no more than so many open: it closes what it sent when we may already have it."""
    await becomes(lambda: max(files, len(os.listdir(f"/proc/{spawner.zygote.pid}/fd"))), files)


async def becomes(look: Callable[[], T], wanted: T) -> None:
    """Return when ``look()`` gives ``wanted``; fails with what it gave at last."""
    with trio.move_on_after(PATIENCE):
        while (seen := look()) != wanted:
            await trio.sleep(0.01)
    assert seen == wanted, f"not within {PATIENCE:g} s: it became {seen!r}, not {wanted!r}"


@frozen
class Belongings:
    """What could be left behind: descriptors, mounts, and children that nobody waited for."""

    descriptors: int
    mounts: str
    zombie: bool

    closers: ClassVar[list[Closer]] = []  # of the spawners that were started by start_spawner()

    @classmethod
    def now(cls) -> "Belongings":
        """Once the thread has closed the descriptors of ended sandboxes, and what earlier tests left is freed.

        A watcher that is cancelled leaves its thread, which reads /proc to the end: it is waited for too.
        """
        gc.collect()
        while any(thread.name.startswith(("watch from ", "walk from ")) for thread in threading.enumerate()):
            time.sleep(0.001)
        while any(closer.busy for closer in cls.closers):
            time.sleep(0.001)
        zombie = None
        with contextlib.suppress(ChildProcessError):  # there is no child
            zombie = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return cls(len(os.listdir("/proc/self/fd")), Path("/proc/self/mountinfo").read_text(), zombie is not None)


async def gone(pidfds: Sequence[int]) -> None:
    """Return when all these processes have ended; ours to close afterwards."""
    for pidfd in pidfds:
        await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)
