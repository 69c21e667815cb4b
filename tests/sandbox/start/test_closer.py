"""Descriptors are closed in one thread, in the order they come, without anyone waiting."""

import os
import time

import pytest
import trio

from agentos.sandbox.start.closer import Closer


def wait_until_done(closer: Closer) -> None:
    while closer.busy:
        time.sleep(0.001)


def test_everything_is_closed_by_one_thread_however_much_comes_meanwhile() -> None:
    closer, pipes = Closer(), [os.pipe() for _ in range(200)]

    async def main() -> None:
        for pipe in pipes:
            closer.close(pipe)

    trio.run(main)
    wait_until_done(closer)

    for fd in (fd for pipe in pipes for fd in pipe):
        assert not os.path.exists(f"/proc/self/fd/{fd}")


def test_few_are_closed_after_a_delay_unless_something_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closer, descriptors = Closer(), os.pipe()
    monkeypatch.setattr("agentos.sandbox.start.closer.DELAY", 600)

    async def main() -> None:
        closer.close(descriptors)

    trio.run(main)
    assert all(os.path.exists(f"/proc/self/fd/{fd}") for fd in descriptors)

    closer.hurry()
    wait_until_done(closer)
    assert not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in descriptors)


def test_without_a_thread_they_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    closer, descriptors = Closer(), os.pipe()
    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", refuse)

    closer.close(descriptors)

    assert not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in descriptors)
    assert not closer.busy
