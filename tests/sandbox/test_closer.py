"""Descriptors are closed in one thread, in the order they come, without anyone waiting."""

import os
import time

import trio

from agentos.sandbox.closer import Closer


def test_everything_is_closed_by_one_thread_however_much_comes_meanwhile() -> None:
    closer, pipes = Closer(), [os.pipe() for _ in range(200)]

    async def main() -> None:
        for pipe in pipes:
            closer.close(pipe)

    trio.run(main)
    while closer.busy:
        time.sleep(0.001)

    for fd in (fd for pipe in pipes for fd in pipe):
        assert not os.path.exists(f"/proc/self/fd/{fd}")
