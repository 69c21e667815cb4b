"""CPU time that READ takes in the kernel's event loop, without the threads that wait for the file system.

In this process: functions that the kernel runs in a thread are called in place, and their time is subtracted.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar
from unittest.mock import patch

import trio
from attrs import define

from agentos.agents.registry import Registry
from agentos.agents.workspaces.view import View
from agentos.kernel.call import Call
from agentos.kernel.caller import Caller
from agentos.kernel.table import Table
from agentos.permissions.authorizer import AgentTree, PermissionAuthorizer
from agentos.permissions.levels import LEVELS
from agentos.permissions.patterns.base import Names
from agentos.services.audit.log import open_audit
from agentos.syscalls.files.files import Files, PathResolver
from agentos.threads import Limiter
from agentos_sdk.opcodes import Op
from tests.speed.place import Place
from tests.speed.processes import MeasurementError, pinned
from tests.speed.results import Result, Row

T = TypeVar("T")
TEXT = "a line of a small file\n" * 40
FILES = 10  # read in turn, so that no decision is that of the call before
CALLS = 200  # in a round
ROWS = (Row(f"READ of {len(TEXT)} bytes: in the event loop, without the thread", " µs", most=60),)


@define
class InPlace:
    """Runs functions without a thread. ``seconds`` is the time that they took."""

    seconds: float = 0.0

    async def run(self, function: Callable[..., T], *args: Any, limiter: Limiter) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        await limiter.acquire()
        begun = time.thread_time()
        try:
            return function(*args)
        finally:
            self.seconds += time.thread_time() - begun
            limiter.release()
            await trio.lowlevel.cancel_shielded_checkpoint()  # as after a thread has ended


def files(place: Place) -> list[Result]:
    directory = Path(mkdtemp(dir=place.directory))
    for number in range(FILES):
        (directory / f"notes-{number}.md").write_text(TEXT)
    with pinned(place.cpu):
        taken = trio.run(_read, directory, 10 if place.quick else 40)
    return [Result.of(ROWS[0], taken, note=f"least {min(taken):.1f}")]


async def _read(directory: Path, rounds: int) -> list[float]:
    """Microseconds of a call, by round."""
    names = Names("/home/op", str(directory))
    authorizer = PermissionAuthorizer(AgentTree(lambda *_: True, str, lambda *_: False, lambda *_: False))
    authorizer.add_caller(1, LEVELS["unrestricted"], names)
    table, threads, taken = (
        Table(Files(PathResolver(Registry(), View(str(directory), "/home/op")), 1 << 20).syscalls()),
        InPlace(),
        [],
    )
    later = table.entries[Op.READ].later
    assert later is not None
    async with open_audit(directory / "audit", "0") as log:
        caller = Caller(1, "operator", "operator", table, authorizer, log)
        bodies = [json.dumps({"path": f"notes-{number}.md"}).encode() for number in range(FILES)]
        for number in range(rounds + 1):
            with patch("agentos.syscalls.files.files.run_in_thread", threads.run):
                threads.seconds, begun = 0.0, time.thread_time()
                for at in range(CALLS):
                    reply = await later(Call(caller, False, _nowhere), bodies[at % FILES])
                spent = time.thread_time() - begun - threads.seconds
            if json.loads(reply).get("content") != TEXT:
                raise MeasurementError(f"READ answered {reply!r}")
            if number > 0:  # the first round compiles rules
                taken.append(spent / CALLS * 1e6)
            await trio.sleep(0.01)  # the audit log is written
    return taken


async def _nowhere(chunk: bytes) -> None:
    raise AssertionError("nothing is streamed")
