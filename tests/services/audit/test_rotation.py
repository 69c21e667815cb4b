"""The log goes on: from segment to segment, from kernel to kernel, and past whatever somebody did to it, saying so."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.services.audit.chain import Row, parse_removal
from agentos.services.audit.log import open_audit
from agentos.services.audit.query import Query, read_newest
from agentos.services.audit.verify import verify_log

from .audited import SMALL, change, entry, found, opened, sound, told, written


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_the_chain_goes_on_in_the_next_segment(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    await written(directory, 200, segment_size=SMALL)

    assert names(directory)[:4] == ["000001.db", "000001.head", "000002.db", "000002.head"]
    assert told(directory) == [f"number {number}" for number in range(200)]
    assert [row.seq for row in found(directory)] == list(range(1, 203))
    assert sound(directory)


async def test_only_so_many_segments_are_kept_and_the_log_says_where_it_begins_now(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    await written(directory, 600, segment_size=SMALL, kept=2)

    segments = [name for name in names(directory) if name.endswith(".db")]
    removals = [removal for row in found(directory) if (removal := parse_removal(row)) is not None]
    report = verify_log(directory)
    assert len(segments) == 2
    assert removals[-1].segment == int(segments[0][:6]) - 1
    assert removals[-1].last.seq == report.first - 1
    assert report.faults == ()
    assert verify_log(directory, removals[-1].last.hash).sound  # a head that was noted just then is still known


async def test_more_was_taken_away_than_the_log_says(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    await written(directory, 600, segment_size=SMALL, kept=3)
    oldest = names(directory)[:2]

    for name in oldest:
        (directory / name).unlink()

    assert str(verify_log(directory).faults[0]).startswith("entry 1: it is missing, and so are all up to ")


async def test_a_kill_while_the_oldest_is_taken_away_does_no_harm(tmp_path: Path) -> None:
    directory, before = tmp_path / "audit", tmp_path / "before"
    await written(directory, 150, segment_size=SMALL)
    shutil.copytree(directory, before)
    await written(directory, 50, segment_size=SMALL, kept=len(list(directory.glob("*.db"))))
    assert min(directory.glob("*.db")).name == "000002.db"

    for left in ("000001.head", "000001.db"):  # of both files, one was gone already
        os.link(before / left, directory / left)
        assert sound(directory)
        (directory / left).unlink()


async def test_a_kill_while_a_segment_is_made_does_no_harm(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    await written(directory, 5)

    for left in ("000002.head", "000002.db"):
        (directory / left).touch()
        assert sound(directory)
        assert len(read_newest(directory, Query(), 3)) == 3

    os.truncate(directory / "000001.head", (directory / "000001.head").stat().st_size - 9)  # and one before it, too
    assert verify_log(directory).unheaded == 1
    await written(directory, 1)
    assert sound(directory)
    assert [row.call for row in found(directory)][-3:] == ["KERNEL_START", "WRITE", "KERNEL_STOP"]


async def test_where_no_next_segment_can_be_made_it_goes_on_in_this_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "audit"

    async with open_audit(directory, "1.0", segment_size=SMALL) as audit:
        (directory / "000002.db").mkdir()
        for number in range(200):
            await audit.intend(entry(f"number {number}"))
        (directory / "000002.db").rmdir()
        for number in range(200, 300):
            await audit.intend(entry(f"number {number}"))

    assert caplog.text.count("can't rotate the audit log") == 1
    assert told(directory) == [f"number {number}" for number in range(300)]
    assert (directory / "000002.db").is_file()
    assert sound(directory)


# -- After somebody's visit --------------------------------------------------------------------------------------------


def cut_rows(directory: Path) -> None:
    change(directory, "DELETE FROM entries WHERE seq > 30")


def change_last(directory: Path) -> None:
    change(directory, "UPDATE entries SET about = 'nothing', hash = 'x' WHERE seq = 42")


def add_rows(directory: Path) -> None:
    columns = ", ".join(Row._fields[1:])
    change(directory, f"INSERT INTO entries SELECT 43, {columns} FROM entries WHERE seq = 42")


def cut_head(directory: Path) -> None:
    os.truncate(directory / "000001.head", 800)


def no_head(directory: Path) -> None:
    (directory / "000001.head").unlink()


def no_rows(directory: Path) -> None:
    (directory / "000001.db").unlink()


def no_table(directory: Path) -> None:
    with opened(directory) as connection:
        connection.execute("DROP TABLE entries")


def no_database(directory: Path) -> None:
    (directory / "000001.db").write_text("Dear diary, " * 1000)


@pytest.mark.parametrize("visit", [cut_rows, change_last, add_rows, cut_head, no_head, no_rows, no_table, no_database])
async def test_a_kernel_that_finds_the_end_of_its_log_cut_says_so_loudly_and_goes_on(
    tmp_path: Path, visit: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "audit"
    await written(directory, 40)
    visit(directory)

    await written(directory, 2)

    assert "the audit log was tampered with or damaged" in caplog.text
    first = next(row for row in found_in_the_end(directory) if row.call == "AUDIT_CUT")
    assert first.seq >= 43
    assert [row.call for row in found_in_the_end(directory)][-4:] == ["KERNEL_START", "WRITE", "WRITE", "KERNEL_STOP"]
    caplog.clear()
    await written(directory, 1)
    assert caplog.text == ""
    report = verify_log(directory)
    assert report.faults  # a later kernel doesn't heal it
    assert all(fault.seq is None or fault.seq <= first.seq for fault in report.faults)


def found_in_the_end(directory: Path) -> list[Row]:
    """What can still be read."""
    last = max(directory.glob("*.db"))
    connection = sqlite3.connect(f"file:{last}?mode=ro", uri=True)
    try:
        return [Row._make(each) for each in connection.execute("SELECT * FROM entries ORDER BY seq")]
    finally:
        connection.close()


async def test_a_last_row_that_is_changed_while_a_kernel_runs_does_not_get_into_the_chain(tmp_path: Path) -> None:
    directory = tmp_path / "audit"

    async with open_audit(directory, "1.0") as audit:
        number = await audit.intend(entry("the act"))
        change(directory, "UPDATE entries SET about = 'another' WHERE seq = ?", number)
        await audit.intend(entry("the next"))

    assert [fault.seq for fault in verify_log(directory).faults] == [number]


async def test_rows_of_another_process_while_a_kernel_runs_stop_what_needs_the_log(tmp_path: Path) -> None:
    directory, columns = tmp_path / "audit", ", ".join(Row._fields[1:])

    async with open_audit(directory, "1.0") as audit:
        number = await audit.intend(entry("the act"))
        change(directory, f"INSERT INTO entries SELECT seq + 1, {columns} FROM entries WHERE seq = ?", number)
        with pytest.raises(
            Exception, match=r"000001\.db: another process writes to it: stop that process, and start again"
        ):
            await audit.intend(entry("the next", kind="operator"))

    assert not verify_log(directory).sound
