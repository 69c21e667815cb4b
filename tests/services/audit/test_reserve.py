"""On a full disk the operator can still act, and have it written down; nobody else uses up what is left for that."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from agentos.services.audit import reserve
from agentos.services.audit.log import Audit, open_audit
from agentos.services.audit.query import Query
from agentos.services.audit.reserve import HEAD_RESERVE_BYTES, REFILL_STEP_BYTES, ROWS_RESERVE_BYTES, WAL_BYTES
from agentos_sdk.errors import Unavailable
from tests.support.mounts import small_disk
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

from .audited import DENIED, READ, SMALL, entry, found, sound, told, written

KILL = entry("evil", agent=1, name="operator#1", kind="operator", call="KILL")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of thirty-two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    with small_disk(place, "32M"):
        yield place


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reserve that is used up by hundreds of entries instead of thousands."""
    monkeypatch.setattr(reserve, "WAL_BYTES", 5 << 20)


def fill(place: Path) -> Path:
    """Take all the room that is left."""
    ballast = place / "ballast"
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return ballast
    raise AssertionError("it isn't full")


@contextmanager
def filling(place: Path) -> Iterator[None]:
    """Somebody who takes whatever room there is as soon as it is there, until the block is left."""
    over = threading.Event()

    def take() -> None:
        while not over.is_set():
            fill(place)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def refused(audit: Audit, **who: object) -> Unavailable:
    """The error of the first intent that finds no room."""
    for number in range(100_000):
        try:
            await audit.intend(entry(f"act {number} " + "x" * 400, **{"agent": number, **who}))
        except Unavailable as error:
            return error
    raise AssertionError("there was always room")


async def accepted(audit: Audit) -> None:
    """Come back when an agent's act is announced again."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await audit.intend(entry("again"))
            except Unavailable:
                await trio.sleep(0.05)
            else:
                return


@pytest.mark.usefixtures("long")
async def test_an_agent_that_fills_the_disk_can_not_keep_the_operator_from_killing_it(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = small / "audit"

    async with open_audit(directory, "1.0") as audit:
        ballast = await trio.to_thread.run_sync(fill, small)
        error = await refused(audit)
        for number in range(2000):
            await audit.intend(KILL)
            with pytest.raises(Unavailable):
                await audit.intend(entry("meanwhile", agent=number))
        assert caplog.text.count(f"the disk of {directory} is full") == 1
        await trio.Path(ballast).unlink()
        await accepted(audit)

    assert str(error) == "not done: the disk of the audit log is full; free some space on it"
    assert len(found(directory, Query(calls=["KILL"]))) == 2000
    assert "meanwhile" not in told(directory)
    assert "has space again" in caplog.text
    assert sound(directory)


async def test_a_program_that_takes_any_room_at_once_does_not_get_what_the_operator_needs(small: Path) -> None:
    directory = small / "audit"

    async with open_audit(directory, "1.0") as audit:
        await trio.to_thread.run_sync(fill, small)
        with filling(small):
            await refused(audit)
            for _ in range(rounds(300)):
                await audit.intend(KILL)

    assert len(found(directory, Query(calls=["KILL"]))) == rounds(300)
    assert sound(directory)


async def test_what_is_refused_while_the_reserve_is_used_is_counted_and_does_not_use_it_up(small: Path) -> None:
    directory = small / "audit"

    async with open_audit(directory, "1.0") as audit:
        ballast = await trio.to_thread.run_sync(fill, small)
        await refused(audit)
        for number in range(50_000):
            audit.note(replace((DENIED, READ)[number % 2], agent=number % 1000))
        await audit.intend(KILL)
        before = found(directory, Query(calls=["READ"]))
        await trio.Path(ballast).unlink()
        await accepted(audit)

    assert before == []
    assert sum(row.repeated for row in found(directory, Query(calls=["READ"]))) == 50_000


@pytest.mark.usefixtures("little")
async def test_without_any_room_nothing_is_announced_and_only_the_operator_hears_where(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = small / "audit"

    async with open_audit(directory, "1.0") as audit:
        ballast = await trio.to_thread.run_sync(fill, small)
        await refused(audit)
        operator = await refused(audit, kind="operator")
        others = [await refused(audit, kind=kind) for kind in ("agent", "guest")]
        before = len(found(directory))
        for _ in range(50):
            audit.note(replace(KILL, phase="outcome", outcome="ok"))
        await refused(audit, kind="operator")
        await trio.Path(ballast).unlink()
        await accepted(audit)

    assert str(operator).startswith(f"not done: the audit log can't be written: {directory}/000001.")
    assert "file system" in str(operator)
    assert not any(str(small) in str(error) for error in others)
    assert caplog.text.count("can't be written") == 1
    [lost] = found(directory, Query(calls=["AUDIT_LOST"]))
    assert lost.repeated >= 50
    assert lost.seq >= before
    assert sound(directory)


async def test_no_host_path_is_told_to_a_caller_that_waited_when_the_room_ran_out(tmp_path: Path) -> None:
    async with open_audit(tmp_path / "audit", "1.0") as audit:
        audit._files._segment._connection.close()
        errors = dict[str, str]()
        for kind in ("agent", "guest", "operator"):
            with pytest.raises(Unavailable) as caught:
                await audit.intend(entry("it", kind=kind))
            errors[kind] = str(caught.value)

    assert errors["agent"] == errors["guest"] == "not done: the audit log can't be written: the kernel's log says why"
    assert str(tmp_path) in errors["operator"]


async def test_a_disk_without_room_for_a_reserve_is_left_to_the_operator(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (small / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, 25 << 20)

    async with open_audit(small / "audit", "1.0") as audit:
        with pytest.raises(Unavailable):
            await audit.intend(entry("it"))
        await audit.intend(KILL)
        await trio.Path(small / "ballast").unlink()
        await accepted(audit)

    assert f"the disk of {small / 'audit'} is full" in caplog.text


def allocated(directory: Path) -> dict[str, int]:
    """By file how many bytes it has on the disk."""
    return {path.name: path.stat().st_blocks * 512 for path in directory.iterdir()}


async def test_the_room_that_is_kept_is_no_empty_promise_and_grows_with_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "audit"

    async with open_audit(directory, "1.0") as audit:
        for _ in range(2):
            held = allocated(directory)
            assert (
                held["000001.db"] >= (directory / "000001.db").stat().st_size + ROWS_RESERVE_BYTES - REFILL_STEP_BYTES
            )
            assert (
                held["000001.head"]
                >= (directory / "000001.head").stat().st_size + HEAD_RESERVE_BYTES - REFILL_STEP_BYTES
            )
            assert held["000001.db-wal"] >= WAL_BYTES
            await many(audit, 4000)

    assert (directory / "000001.db").stat().st_size > ROWS_RESERVE_BYTES


async def many(audit: Audit, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(audit.intend, KILL)


async def test_what_is_kept_is_not_left_behind_in_every_segment(tmp_path: Path) -> None:
    await written(tmp_path / "audit", 200, segment_size=SMALL)

    assert len(allocated(tmp_path / "audit")) >= 4
    assert max(allocated(tmp_path / "audit").values()) <= 4 * SMALL
    assert sound(tmp_path / "audit")


async def test_a_file_system_that_can_not_reserve_space_prevents_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(reserve, "allocate", unsupported)

    await written(tmp_path / "audit", 200, segment_size=SMALL)

    assert caplog.text.count("can't reserve disk space for the time when the disk of") == 1
    assert len(told(tmp_path / "audit")) == 200


@pytest.mark.parametrize("kept", [True, False], ids=["with a reserve", "without one"])
async def test_what_fills_the_disk_can_be_killed_by_the_operator_and_by_its_parent(
    small: Path, caplog: pytest.LogCaptureFixture, kept: bool
) -> None:
    """Announced while that can be written; then counted, and the count is written when there is room again."""
    directory, parents = small / "audit", replace(KILL, agent=7, name="parent", kind="agent", about="child")
    if not kept:
        with (small / "first").open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, 25 << 20)

    async with open_audit(directory, "1.0") as audit:
        await trio.to_thread.run_sync(fill, small)
        await refused(audit)
        await refused(audit, kind="operator")
        with trio.fail_after(PATIENCE):
            announced = [await audit.intend(kill) for kill in (KILL, parents, parents)]
            for kill in (KILL, parents, parents):
                audit.note(replace(kill, phase="outcome", outcome="ok"))
        with pytest.raises(Unavailable):
            await audit.intend(entry("anything else", kind="operator"))
        for name in ("ballast", *([] if kept else ["first"])):
            await trio.Path(small / name).unlink()
        await accepted(audit)

    assert announced == [None, None, None]
    assert "without an entry in the audit log" in caplog.text
    lost = [row for row in found(directory, Query(calls=["AUDIT_LOST"])) if "KILL" in row.about]
    assert sum(row.repeated for row in lost) == 3
    outcomes = [row for row in found(directory, Query(calls=["KILL"])) if row.name == "parent"]
    assert sum(row.repeated for row in outcomes) == 2
    assert sound(directory)
