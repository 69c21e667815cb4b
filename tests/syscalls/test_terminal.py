"""What is typed into a terminal whose program doesn't read."""

import os
import pty
import tty

import trio
from trio.abc import Instrument
from trio.lowlevel import Task
from trio.testing import MockClock

from agentos.syscalls.files.terminal import FULL_PAUSE, write_all

TYPED = b"0123456789" * 10_000


class Steps(Instrument):
    """How often a task that writes has had its turn."""

    count = 0

    def before_task_step(self, task: Task) -> None:
        self.count += "write_all" in task.name


async def test_a_full_terminal_is_tried_again_after_a_pause_and_nothing_is_lost(mock_clock: MockClock) -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    for terminal in (ours, theirs):
        os.set_blocking(terminal, False)
    read, pauses, steps = b"", 0, Steps()
    trio.lowlevel.add_instrument(steps)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_all, ours, TYPED)
        while len(read) < len(TYPED):
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            assert steps.count <= 2 * pauses + 2
            try:
                read += os.read(theirs, 1 << 20)
            except BlockingIOError:
                pauses += 1
                mock_clock.jump(FULL_PAUSE)
    trio.lowlevel.remove_instrument(steps)
    for terminal in (ours, theirs):
        os.close(terminal)

    assert read == TYPED
