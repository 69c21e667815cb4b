"""The bound of the state directory: what is dropped, in which order, and what is said where that doesn't suffice."""

import logging
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from agentos.services.storage.bound import MIN_INTERVAL, TELL_INTERVAL, Droppable, StorageBound
from agentos.services.storage.kinds import measure_files

MIB = 1 << 20


def put(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def droppable(what: str, *files: Path) -> Droppable:
    """Real files that may go, the first one first."""

    async def drop(wanted: int) -> int:
        freed = 0
        for file in files:
            if freed < wanted and file.exists():
                freed += file.stat().st_size
                file.unlink()
        return freed

    return Droppable(what, drop)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


async def test_what_may_go_is_dropped_in_order_and_no_more_than_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old, newer, events = (put(tmp_path / name, MIB) for name in ("logs/a.1.1.jsonl", "logs/b.1.1.jsonl", "events/1"))
    kept = put(tmp_path / "workspaces" / "a.img", 2 * MIB)
    most = sum(held.size for held in measure_files(tmp_path)) - MIB - 1
    bound = StorageBound(tmp_path, most, (droppable("logs", old, newer), droppable("events", events)))

    for _ in range(3):
        await bound.look(most)

    assert [path.exists() for path in (old, newer, events, kept)] == [False, False, True, True]
    assert caplog.messages == ["[storage] max_total: dropped 2.0 MiB of logs"]
    assert bound.problem is None


async def test_the_next_kind_goes_where_the_first_does_not_suffice(tmp_path: Path) -> None:
    log, events = put(tmp_path / "logs" / "a.1.1.jsonl", MIB), put(tmp_path / "events" / "1", MIB)
    most = sum(held.size for held in measure_files(tmp_path)) - MIB - 1
    bound = StorageBound(tmp_path, most, (droppable("logs", log), droppable("events", events)))

    await bound.look(most)

    assert (log.exists(), events.exists(), bound.problem) == (False, False, None)


async def test_where_nothing_more_may_go_it_is_said_once_a_day_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    image = put(tmp_path / "workspaces" / "a.img", 3 * MIB)
    put(tmp_path / "audit" / "000001.db", 2 * MIB)
    bound = StorageBound(tmp_path, MIB, (droppable("logs", put(tmp_path / "logs" / "b.1.1.jsonl", 4096)),))

    for _ in range(10):
        await bound.look(MIB)
        await trio.sleep(MIN_INTERVAL)
    [said] = warnings(caplog)
    await trio.sleep(TELL_INTERVAL)
    await bound.look(MIB)

    assert said.startswith("the state directory holds 5.0 MiB, more than [storage] max_total (1.0 MiB), ")
    assert "workspaces of a (3.0 MiB), audit of kernel (2.0 MiB)" in said
    assert "`agentos storage`" in said
    assert len(warnings(caplog)) == 2
    assert bound.problem is not None
    image.unlink()
    await bound.look(3 * MIB)
    assert bound.problem is None


async def test_as_much_as_the_bound_is_kept_and_not_a_byte_more(tmp_path: Path) -> None:
    log = put(tmp_path / "logs" / "a.1.1.jsonl", MIB)
    most = sum(held.size for held in measure_files(tmp_path))
    bound = StorageBound(tmp_path, most, (droppable("logs", log),))

    await bound.look(most)
    assert (log.exists(), bound.problem) == (True, None)

    await bound.look(most - 1)
    assert (log.exists(), bound.problem) == (False, None)


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 60.0), (0.1, 60.0), (30.0, 3000.0)])
async def test_the_longer_a_look_takes_the_seldomer_it_is(
    tmp_path: Path, autojump_clock: MockClock, seconds: float, pause: float
) -> None:
    put(tmp_path / "audit" / "1", MIB)
    looks, third = list[float](), trio.Event()

    async def drop(wanted: int) -> int:
        looks.append(trio.current_time())
        if len(looks) == 3:
            third.set()
        await trio.sleep(seconds)
        return 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(StorageBound(tmp_path, 0, (Droppable("logs", drop),)).serve)
        await third.wait()
        nursery.cancel_scope.cancel()

    assert [later - earlier - seconds for earlier, later in pairwise(looks)] == [pytest.approx(pause)] * 2


async def test_without_a_bound_nothing_is_measured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await StorageBound(tmp_path / "missing", None, ()).serve()

    assert caplog.messages == []


async def test_a_directory_that_cannot_be_measured_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await StorageBound(tmp_path / "state", 0, ()).look(0)

    assert warnings(caplog) == [
        f"{tmp_path}/state: what the state directory holds can't be measured: No such file or directory"
    ]
