"""The queue of calls that wait to be written: when a flush is done, and which recordings have room."""

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from agentos.recordings.format import CALLS
from agentos.recordings.recorder import queue as module
from agentos.recordings.recorder.lines import LineMaker, Seen
from agentos.recordings.recorder.queue import WriteQueue
from agentos.recordings.recorder.writer import Target
from agentos_sdk.opcodes import Op
from tests.support.wire import PATIENCE


async def test_a_flush_during_a_write_is_done_when_that_is_though_nothing_waits(tmp_path: Path) -> None:
    begun, may_end, flushed = threading.Event(), threading.Event(), trio.Event()

    def list_secrets() -> list[tuple[str, str]]:  # asked by the thread that writes
        begun.set()
        assert may_end.wait(PATIENCE)
        return []

    queue = WriteQueue(LineMaker(lambda result: result, list_secrets), lambda: None)
    target = Target(tmp_path / "a", 1000)
    queue.put(Seen("coder/1", Op.NOOP, (1, 2), 0, 0, b"{}", None, b"{}"), [target])

    async def flush() -> None:
        await queue.flush()
        flushed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.serve)
        assert await trio.to_thread.run_sync(begun.wait, PATIENCE)
        nursery.start_soon(flush)
        await trio.testing.wait_all_tasks_blocked()
        assert not flushed.is_set()
        may_end.set()
        with trio.fail_after(PATIENCE):
            await flushed.wait()
        assert (target.directory / CALLS).read_bytes().count(b"\n") == 1
        queue.close()


async def test_what_was_written_takes_no_room_from_a_recordings_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 100_000)
    queue = WriteQueue(LineMaker(lambda result: result, list), lambda: None)
    one, other = (Target(tmp_path / name, 1 << 20) for name in ("one", "other"))
    call = Seen("coder/1", Op.NOOP, (1, 2), 0, 0, b"{}", None, b"{}")

    def fill(target: Target) -> None:
        while not queue.put(call, [target]):
            pass

    async with trio.open_nursery() as nursery:
        fill(one)
        nursery.start_soon(queue.serve)
        with trio.fail_after(PATIENCE):
            await queue.flush()
        fill(other)
        left = queue.put(call, [one])
        queue.close()

    assert not left
