import os
from collections.abc import Callable

import pytest
import trio
import trio.testing

from agentos.agents.commands.fair_reader import CREDIT_SECONDS, Pipe, Turns

WHILE = 10.0  # seconds, of a clock that nobody waits for


async def read_without_end(turns: Turns, whose: str, seconds: float, until: float) -> float:
    """How many seconds of turns somebody gets who always has that much more to be read."""
    got = 0.0
    while trio.current_time() < until:
        got += seconds
        await trio.sleep(turns.charge(whose, seconds))
    return got


async def shares(*floods: tuple[str, float]) -> dict[str, float]:
    """What each of some floods gets in ``WHILE``, as a part of the time."""
    turns, got = Turns(), dict.fromkeys((whose for whose, _ in floods), 0.0)
    until = trio.current_time() + WHILE

    async def flood(whose: str, seconds: float) -> None:
        mine = await read_without_end(turns, whose, seconds, until)
        got[whose] += mine

    async with trio.open_nursery() as nursery:
        for whose, seconds in floods:
            nursery.start_soon(flood, whose, seconds)
    return {whose: seconds / WHILE for whose, seconds in got.items()}


async def test_a_flood_alone_gets_all_the_time_there_is(autojump_clock: trio.testing.MockClock) -> None:
    got = await shares(("a", 0.01))

    assert got["a"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("count", [2, 24, 100])
async def test_many_floods_get_no_more_than_one_and_all_the_same(
    autojump_clock: trio.testing.MockClock, count: int
) -> None:
    got = await shares(*((str(number), 0.01) for number in range(count)))

    once = count * 0.01 + 5 * CREDIT_SECONDS  # each is read once, and who comes first has not seen the others yet
    assert sum(got.values()) < 1 + once / WHILE
    assert max(got.values()) < 2 * min(got.values())


async def test_a_pipe_that_is_read_in_small_pieces_gets_no_more(autojump_clock: trio.testing.MockClock) -> None:
    got = await shares(("dense", 0.02), ("sparse", 0.001))

    assert got["sparse"] == pytest.approx(got["dense"], rel=0.1)


async def test_a_second_stream_brings_no_second_share(autojump_clock: trio.testing.MockClock) -> None:
    got = await shares(("both", 0.01), ("both", 0.01), ("one", 0.01))

    assert got["both"] == pytest.approx(got["one"], rel=0.1)


async def test_a_pipe_with_little_output_never_waits_for_floods(autojump_clock: trio.testing.MockClock) -> None:
    turns = Turns()
    waited = []
    async with trio.open_nursery() as nursery:
        for number in range(24):
            nursery.start_soon(read_without_end, turns, str(number), 0.01, trio.current_time() + WHILE)
        for _ in range(40):
            await trio.sleep(0.2)
            waited.append(turns.charge("quiet", 0.001))

    assert waited == [0.0] * 40


async def test_a_pipe_that_stays_just_below_the_limit_is_held_back_with_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turns, got = Turns(), 0.0
    until = trio.current_time() + WHILE

    async def nearly() -> None:
        nonlocal got
        mine = object()
        while trio.current_time() < until:
            got += 0.01
            await trio.sleep(max(0.011, turns.charge(mine, 0.01)))

    async with trio.open_nursery() as nursery:
        for _ in range(24):
            nursery.start_soon(nearly)

    assert got < 1.2 * WHILE


async def test_the_share_of_pipes_that_have_ended_goes_to_the_others(autojump_clock: trio.testing.MockClock) -> None:
    turns = Turns()
    async with trio.open_nursery() as nursery:
        for number in range(24):
            nursery.start_soon(read_without_end, turns, str(number), 0.01, trio.current_time() + 1)
    await trio.sleep(1)

    got = await read_without_end(turns, "last", 0.01, trio.current_time() + WHILE)

    assert got == pytest.approx(WHILE, rel=0.02)


def pipe_of(data: bytes, take: Callable[[bytes], float]) -> Pipe:
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.write(write, data)
    os.close(write)
    return Pipe(read, Turns(), "somebody", 4096, take)


async def test_what_takes_long_is_read_in_smaller_pieces(autojump_clock: trio.testing.MockClock) -> None:
    pieces: list[int] = []

    def take(data: bytes) -> float:
        pieces.append(len(data))
        return len(data) / 25_000  # 512 bytes are more than a piece should be worth

    pipe = pipe_of(b"x" * 20_000, take)
    await pipe.run()
    pipe.finish()

    assert sum(pieces) == 20_000
    assert max(pieces) <= 512


async def test_what_comes_quickly_is_read_in_larger_pieces(autojump_clock: trio.testing.MockClock) -> None:
    pieces: list[int] = []

    def take(data: bytes) -> float:
        pieces.append(len(data))
        return 0.0001

    pipe = pipe_of(b"x" * 20_000, take)
    await pipe.run()
    pipe.finish()

    assert max(pieces) == 4096


async def test_each_of_many_single_bytes_takes_its_time(autojump_clock: trio.testing.MockClock) -> None:
    read, write = os.pipe()
    count, began = 0, trio.current_time()

    def take(data: bytes) -> float:
        nonlocal count
        count += len(data)
        if count < 2000:
            os.write(write, b"x")
        elif data:
            os.close(write)
        return 0.0

    os.write(write, b"x")
    pipe = Pipe(read, Turns(), "somebody", 4096, take)
    await pipe.run()
    pipe.finish()

    assert trio.current_time() - began > 1


def test_a_process_that_still_has_the_pipe_open_at_the_end_writes_to_no_reader() -> None:
    taken = bytearray()
    read, write = os.pipe()
    os.write(write, b"last words")

    def take(data: bytes) -> float:
        taken.extend(data)
        return 0.0

    Pipe(read, Turns(), "somebody", 4096, take).finish()

    assert taken == b"last words"
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")
    os.close(write)
