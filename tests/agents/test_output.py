import gc
import os
import weakref

import pytest
import trio
import trio.testing

from agentos.agents.commands.fair_reader import Turns
from agentos.agents.life import output
from agentos.agents.life.output import MAX_LINE_CHARS, MAX_LINES, Output, Pump
from agentos.agents.life.output_rate import OutputRate
from agentos.kernel.wire.poller import Poller
from agentos_sdk.values import Line
from tests.support.runs.rows import each_row


def texts(kept: Output) -> list[str]:
    return [line.text for line in kept.since(0)[0]]


async def pumped(data: bytes, log_fill: float = 0.0) -> Output:
    """What a stream's bytes become."""
    kept = Output()
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.write(write, data)
    os.close(write)
    pump = Pump(read, "stdout", kept, Turns(), OutputRate(lambda: log_fill))
    await pump.run()
    pump.finish()
    return kept


def test_lines_are_numbered_whether_kept_or_not() -> None:
    kept = Output()
    for number in range(MAX_LINES + 5):
        kept.add("stdout", str(number))

    lines, missed = kept.since(2)

    assert (lines[0].text, missed, kept.end) == ("5", 3, MAX_LINES + 5)
    assert [line.text for line in kept.since(kept.end - 1)[0]] == [str(MAX_LINES + 4)]


def test_bytes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_BYTES", 10)
    kept = Output()
    for text in ("aaaa", "bbbb", "cccc"):
        kept.add("stdout", text)

    assert texts(kept) == ["bbbb", "cccc"]


def test_trimming_keeps_the_last_and_counts_the_others() -> None:
    kept = Output()
    for text in "abcd":
        kept.add("stdout", text)

    kept.trim(2, 100)

    assert kept.since(0)[1] == 2
    assert texts(kept) == ["c", "d"]


@each_row(
    ("count", "stream", "expected"),
    [(2, None, "cd"), (9, None, "abcd"), (2, "stderr", "bd"), (1, "stderr", "d"), (0, None, ""), (1, "system", "")],
)
def test_the_last_lines_are_as_many_as_asked_for_and_of_that_stream(
    count: int, stream: str | None, expected: str
) -> None:
    kept = Output()
    for written, text in (("stdout", "a"), ("stderr", "b"), ("stdout", "c"), ("stderr", "d")):
        kept.add(written, text)

    assert [line.text for line in kept.last(count, stream)] == [*expected]


def test_the_tap_sees_every_line() -> None:
    seen: list[Line] = []
    Output(seen.append).add("stderr", "x")

    assert [(line.stream, line.text) for line in seen] == [("stderr", "x")]


async def test_a_reader_that_waits_for_a_line_is_woken_by_it(nursery: trio.Nursery) -> None:
    kept = Output()
    woken = trio.Event()

    async def wait() -> None:
        await kept.wait_beyond(1)
        woken.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    kept.add("stdout", "0")
    await trio.testing.wait_all_tasks_blocked()
    assert not woken.is_set()
    kept.add("stdout", "1")
    await woken.wait()


@each_row(
    ("data", "expected"),
    [
        (b"", []),
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\n", ["a", ""]),
        (b"\xff\xc3", ["\ufffd\ufffd"]),
        (b"x" * (2 * MAX_LINE_CHARS + 1), ["x" * MAX_LINE_CHARS, "x" * MAX_LINE_CHARS, "x"]),
        (b"a\n" + b"x" * (MAX_LINE_CHARS + 1) + b"\nb\r\r\n\n", ["a", "x" * MAX_LINE_CHARS, "x", "b", ""]),
    ],
)
async def test_bytes_become_lines(data: bytes, expected: list[str]) -> None:
    assert texts(await pumped(data)) == expected


def test_what_is_left_at_the_end_is_bounded_without_being_looked_at_line_by_line() -> None:
    kept = Output()
    read, write = os.pipe()
    os.write(write, b"\n" * 5000)
    os.close(write)

    Pump(read, "stdout", kept, Turns(), OutputRate()).finish()

    assert kept.end == 5000
    assert len(texts(kept)) == MAX_LINES


def test_of_more_lines_than_are_kept_the_last_stay() -> None:
    kept = Output()
    read, write = os.pipe()
    os.write(write, b"".join(b"%d\n" % number for number in range(5000)) + b"cut off")
    os.close(write)

    Pump(read, "stdout", kept, Turns(), OutputRate()).finish()

    assert kept.end == 5001
    assert texts(kept) == [*(str(number) for number in range(5001 - MAX_LINES, 5000)), "cut off"]


async def test_a_flood_is_read_slowly_while_its_lines_wait_for_the_disk(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await pumped(b"y\n" * 20_000)
    alone = trio.current_time() - began

    kept = await pumped(b"y\n" * 20_000, log_fill=1.0)

    assert kept.end == 20_000
    assert trio.current_time() - began - alone > 0.2 > 10 * alone


@each_row(
    ("lines", "size", "expected"),
    [(5, 100, ["b", "", "ccc", "d", "e"]), (3, 100, ["ccc", "d", "e"]), (9, 5, ["d", "e"]), (9, 6, ["ccc", "d", "e"])],
)
def test_of_lines_that_came_together_the_last_are_kept(lines: int, size: int, expected: list[str]) -> None:
    kept = Output()
    kept.add_lines("stdout", "a\nb\n\nccc\nd")
    kept.add_lines("stdout", "e")

    kept.trim(lines, size)

    assert texts(kept) == expected
    assert kept.since(0)[1] == 6 - len(expected)
    assert kept.end == 6


def test_no_line_of_a_message_of_the_kernel_looks_like_another_message() -> None:
    kept = Output()

    kept.add("kernel", "did not start: x\ngiven up: y")

    assert texts(kept) == ["did not start: x", "  | given up: y"]


async def test_a_stream_is_read_by_a_task_from_its_first_data_on_and_what_is_left_at_the_end() -> None:
    kept, poller = Output(), Poller()
    read, write = os.pipe()
    pump = Pump(read, "stdout", kept, Turns(), OutputRate())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        pump.start(poller, nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1

        os.write(write, b"first\n")
        await kept.wait_beyond(0)
        os.write(write, b"last")
        await pump.end()

        assert texts(kept) == ["first", "last"]
        with pytest.raises(OSError):
            os.fstat(read)
        nursery.cancel_scope.cancel()
    os.close(write)


async def test_a_stream_that_ends_without_data_needs_no_task() -> None:
    kept, poller = Output(), Poller()
    read, write = os.pipe()
    pump = Pump(read, "stdout", kept, Turns(), OutputRate())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        pump.start(poller, nursery)
        os.close(write)
        await trio.testing.wait_all_tasks_blocked()

        assert len(nursery.child_tasks) == 1
        await pump.end()
        nursery.cancel_scope.cancel()
    assert texts(kept) == []


def test_a_pump_is_freed_when_it_has_finished() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    pump = Pump(reading, "stdout", Output(), Turns(), OutputRate())
    pump.finish()
    gone = weakref.ref(pump)
    gc.disable()
    try:
        del pump
        assert gone() is None
    finally:
        gc.enable()
