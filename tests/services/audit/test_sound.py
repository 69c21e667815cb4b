"""The audit log is never found to be tampered with that isn't: while it is written, looked at, and after any kill."""

import os
import shutil
import time
from pathlib import Path

import pytest
import trio

from agentos.services.audit import verify
from agentos.services.audit.chain import Link, QueuedEntry, removal_entry
from agentos.services.audit.log import open_audit
from agentos.services.audit.reserve import WAL_LENGTH, WAL_STEP_BYTES
from agentos.services.audit.segments import Segment, SegmentFiles, is_empty, list_segments, read_last_row
from agentos.services.audit.verify import verify_log
from tests.support import fork_server
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

from .audited import SMALL, entry, found, make, sound, told, written

ROOT = Path(__file__).parents[3]
EACH_LOOK = 60  # entries between two looks: a segment


async def test_while_it_is_written_it_is_sound_at_any_moment(tmp_path: Path) -> None:
    directory, looked = tmp_path / "audit", 0

    async with open_audit(directory, "1.0", segment_size=SMALL, kept=3) as audit, trio.open_nursery() as nursery:
        written, room = 0, trio.Event()

        async def write() -> None:
            nonlocal written, room
            while True:
                await audit.intend(entry("x" * 100, kind="operator"))  # who isn't held up, however many there are
                written += 1
                while written > (looked + 1) * EACH_LOOK:  # more would begin segments as fast as they can be verified
                    await room.wait()

        for _ in range(5):
            nursery.start_soon(write)
        while not (looked >= rounds(15) and (directory / "000010.db").exists()):
            assert await trio.to_thread.run_sync(sound, directory)
            looked += 1
            room.set()
            room = trio.Event()
        nursery.cancel_scope.cancel()

    assert sound(directory)


def test_a_removal_that_is_recorded_in_a_segment_created_meanwhile_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 200, segment_size=SMALL)
    oldest, *_, newest = list_segments(tmp_path)
    last, kept = read_last_row(newest), read_last_row(oldest)
    assert last is not None
    assert kept is not None
    fresh = Segment(newest.next, last.link)

    def remove_after(place: SegmentFiles) -> bool:
        empty = is_empty(place)
        if empty:  # now the kernel goes on, and is stopped within the removal
            fresh.append([QueuedEntry(removal_entry(oldest.number, kept.link), time.time())])
            oldest.rows.unlink()
        return empty

    monkeypatch.setattr(verify, "is_empty", remove_after)
    try:
        assert sound(tmp_path)
    finally:
        fresh.close()


async def test_looking_leaves_nothing_behind_and_changes_nothing(tmp_path: Path) -> None:
    await written(tmp_path / "audit", 5)
    before = {path.name: path.read_bytes() for path in (tmp_path / "audit").iterdir()}

    assert sound(tmp_path / "audit")
    assert len(told(tmp_path / "audit")) == 5

    assert {path.name: path.read_bytes() for path in (tmp_path / "audit").iterdir()} == before


KILLED = """
import itertools, sys, trio
from pathlib import Path
from agentos.services.audit.log import open_audit
from agentos.services.audit.reserve import WAL_LENGTH, WAL_STEP_BYTES
from tests.services.audit.audited import DENIED, SMALL, entry

async def main(round):
    async def act(audit, who):
        for number in itertools.count():
            about = f"{round}-{who}-{number}"
            seq = await audit.intend(entry(about))
            print(seq, about, flush=True)
            audit.note(DENIED)

    directory = Path(sys.argv[1])
    async with open_audit(directory, "1.0", segment_size=SMALL, kept=4) as audit, trio.open_nursery() as nursery:
        for who in range(8):
            nursery.start_soon(act, audit, who)

trio.run(main, sys.argv[2])
"""


def test_a_kill_at_any_moment_loses_no_intent_and_leaves_a_log_that_verifies(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    heads: list[str] = []

    for life in range(rounds(5)):
        acknowledged: dict[int, str] = {}
        argv = ["-c", KILLED, str(directory), str(life)]
        process = fork_server.shared().start_kernel(argv, str(ROOT), os.environ)
        assert process.stdout is not None
        with process.stdout:
            try:
                for _ in range(1 + 37 * life % 300):
                    seq, about = process.stdout.readline().split()
                    acknowledged[int(seq)] = about
            finally:
                process.kill()
            for line in process.stdout:
                if line.endswith("\n"):
                    seq, about = line.split()
                    acknowledged[int(seq)] = about
            process.wait(PATIENCE)

        report = verify_log(directory)
        assert report.faults == ()
        there = {row.seq: row.about for row in found(directory)}
        assert {seq: about for seq, about in acknowledged.items() if seq >= report.first} == {
            seq: there.get(seq) for seq in acknowledged if seq >= report.first
        }
        heads.append(report.last.hash)

    assert verify_log(directory, heads[-1]).sound
    assert any(row.call == "AUDIT_REMOVED" for row in found(directory))
    assert all(row.call not in ("AUDIT_CUT", "AUDIT_LOST") for row in found(directory))
    assert len(heads) == len(set(heads))


async def test_what_a_kill_left_of_the_last_line_is_taken_away(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    await written(log, 40)
    head = log / "000001.head"
    head.write_bytes(head.read_bytes()[:-30])
    assert verify_log(log).unheaded == 1

    await written(log, 1)

    assert sound(log)
    assert [row.call for row in found(log)][-3:] == ["KERNEL_START", "WRITE", "KERNEL_STOP"]
    assert verify_log(log).last == Link(45, found(log)[-1].hash)


async def test_what_a_crash_leaves_of_a_write_ahead_log_that_is_longer_than_its_content_is_sound(
    tmp_path: Path,
) -> None:
    log, crashed = tmp_path / "audit", tmp_path / "crashed"
    async with open_audit(log, "1.0") as audit:
        for number in range(WAL_LENGTH // WAL_STEP_BYTES):
            await audit.intend(entry(f"number {number}"))
        length = (log / "000001.db-wal").stat().st_size
        await audit.intend(entry("the last"))
        assert (log / "000001.db-wal").stat().st_size == length >= WAL_LENGTH  # it doesn't grow any more

        shutil.copytree(log, crashed, ignore=shutil.ignore_patterns("*-shm"))

    assert told(crashed)[-1] == "the last"
    assert sound(crashed)
    await written(crashed, 1)
    assert told(crashed)[-2:] == ["the last", "number 0"]
    assert "AUDIT_CUT" not in [row.call for row in found(crashed)]
    assert sound(crashed)
