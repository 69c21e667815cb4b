"""Whatever somebody does to the files of the audit log, `verify` says so, and at which entry."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos.services.audit.chain import GENESIS, Row, digest
from agentos.services.audit.segments import SELECT
from agentos.services.audit.verify import verify_log
from tests.support.runs.rounds import rounds

from .audited import SMALL, change, found, make, opened, sound

COUNT = 40  # acts; with the kernel's beginning and end the entries 1 to 42


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log") / "audit"
    make(directory, COUNT)
    return directory


@pytest.fixture
def log(pristine: Path, tmp_path: Path) -> Path:
    """A log that nobody has touched, of one segment."""
    return Path(shutil.copytree(pristine, tmp_path / "audit"))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log") / "audit"
    make(directory, 400, segment_size=SMALL)
    assert len(list(directory.glob("*.db"))) >= 4
    return directory


@pytest.fixture
def segments(long: Path, tmp_path: Path) -> Path:
    """The same of several segments."""
    return Path(shutil.copytree(long, tmp_path / "segments"))


def faults(directory: Path, head: str | None = None) -> list[str]:
    return [str(fault) for fault in verify_log(directory, head).faults]


def first(directory: Path) -> int | None:
    """The entry where it is found to be broken."""
    report = verify_log(directory)
    assert report.faults, "it was found to be whole"
    return min((fault.seq for fault in report.faults if fault.seq is not None), default=None)


def lines(directory: Path, number: int = 1) -> list[str]:
    return (directory / f"{number:06}.head").read_text().splitlines(keepends=True)


def put(directory: Path, head: list[str], number: int = 1) -> None:
    (directory / f"{number:06}.head").write_text("".join(head))


def rewrite(directory: Path, start: int, *, heads: bool = False) -> None:
    """Give all rows from ``start`` on the hashes that they would have had: what a patient forger does."""
    with opened(directory) as connection:
        rows = [Row._make(each) for each in connection.execute(f"{SELECT} ORDER BY seq")]
        previous = GENESIS
        told = []
        for row in rows:
            if row.seq >= start:
                row = row._replace(hash=digest(previous, row[:-1]))
                connection.execute("UPDATE entries SET hash = ? WHERE seq = ?", (row.hash, row.seq))
            told.append(f"{row.seq} {row.hash} {row.at:.3f}\n")
            previous = row.hash
    if heads:
        put(directory, told)


def test_an_untouched_log_is_sound(log: Path, segments: Path) -> None:
    for directory in (log, segments):
        report = verify_log(directory)
        assert report.faults == ()
        assert report.first == 1
        assert report.last == found(directory)[-1].link
        assert report.unheaded == 0
        assert report.entries == report.last.seq


CHANGES = {
    "agent": 99, "name": "innocent", "kind": "operator", "call": "NOOP", "about": "nothing", "decision": "deny",
    "rule": "another", "phase": "outcome", "outcome": "ok", "duration": 1.0, "intent": 3, "repeated": 2, "at": 1.0,
    "together": 41, "hash": "0" * 64,
}  # fmt: skip


@pytest.mark.parametrize("column", CHANGES)
def test_a_field_that_was_changed_is_found(log: Path, column: str) -> None:
    change(log, f"UPDATE entries SET {column} = ? WHERE seq = 20", CHANGES[column])

    assert first(log) == 20


def test_every_field_of_a_row_is_in_the_list_above() -> None:
    assert {*CHANGES, "seq"} == set(Row._fields)


def test_a_row_that_was_taken_out_is_found(log: Path) -> None:
    change(log, "DELETE FROM entries WHERE seq = 20")

    assert faults(log)[0] == "entry 20: it is missing"


def test_rows_that_were_taken_out_and_the_rest_moved_up_are_found(log: Path) -> None:
    change(log, "DELETE FROM entries WHERE seq BETWEEN 20 AND 22")
    change(log, "UPDATE entries SET seq = seq - 3 WHERE seq > 22")

    assert first(log) == 20


def test_rows_that_changed_places_are_found(log: Path) -> None:
    for before, after in ((20, 1000), (21, 20), (1000, 21)):
        change(log, "UPDATE entries SET seq = ? WHERE seq = ?", after, before)

    assert first(log) == 20


def test_a_row_that_was_put_in_is_found(log: Path) -> None:
    change(log, "UPDATE entries SET seq = -seq WHERE seq >= 20")
    change(log, "UPDATE entries SET seq = 1 - seq WHERE seq < 0")
    change(log, "INSERT INTO entries SELECT 20, " + ", ".join(Row._fields[1:]) + " FROM entries WHERE seq = 19")

    assert first(log) == 20


def test_the_end_of_the_rows_that_was_cut_off_is_found(log: Path) -> None:
    change(log, "DELETE FROM entries WHERE seq > 30")

    assert faults(log) == ["entry 31: it is missing, and so are all up to 42"]


def test_one_last_row_that_was_cut_off_is_found(log: Path) -> None:
    change(log, "DELETE FROM entries WHERE seq = 42")

    assert faults(log) == ["entry 42: it is missing"]


def test_the_beginning_that_was_cut_off_is_found(log: Path) -> None:
    change(log, "DELETE FROM entries WHERE seq < 20")

    assert "entry 1: it is missing, and so are all up to 19" in faults(log)


def test_all_rows_that_were_deleted_are_found(log: Path) -> None:
    change(log, "DELETE FROM entries")

    assert faults(log) == ["entry 1: it is missing, and so are all up to 42"]


def test_rows_that_were_added_at_the_end_are_found(log: Path) -> None:
    last = found(log)[-1]
    for _ in range(2):
        fields = (*last._replace(seq=last.seq + 1, together=last.seq + 1, about="never happened")[:-1],)
        last = Row(*fields, hash=digest(last.hash, fields))
        change(log, f"INSERT INTO entries VALUES ({', '.join('?' * len(last))})", *last)

    assert first(log) == 43


def test_a_chain_that_was_made_anew_is_found_by_the_head_file(log: Path) -> None:
    change(log, "UPDATE entries SET about = 'nothing' WHERE seq = 20")
    rewrite(log, 20)

    assert first(log) == 20


def test_a_head_file_that_was_taken_away_is_found(log: Path) -> None:
    (log / "000001.head").unlink()

    assert faults(log) == [f"entry 1: {log}/000001.head is missing"]


def test_a_head_file_of_one_entry_that_was_taken_away_is_found(log: Path) -> None:
    change(log, "DELETE FROM entries WHERE seq > 1")
    (log / "000001.head").unlink()

    assert faults(log) == [f"entry 1: {log}/000001.head is missing"]


@pytest.mark.parametrize("left", ["nothing", "empty files"])
def test_a_log_of_which_nothing_is_left_is_found(log: Path, left: str) -> None:
    for path in log.iterdir():
        path.unlink()
    if left == "empty files":
        for suffix in ("db", "head"):
            (log / f"000001.{suffix}").touch()

    assert faults(log) == ["the log is empty; a kernel's first entry is KERNEL_START"]


@pytest.mark.parametrize("kept", [0, 1, 20, 40])
def test_a_head_file_that_was_cut_is_found(log: Path, kept: int) -> None:
    put(log, lines(log)[:kept])

    assert first(log) == kept + 1


def test_a_line_that_was_taken_out_of_the_head_file_is_found(log: Path) -> None:
    put(log, lines(log)[:19] + lines(log)[20:])

    assert faults(log) == [f"entry 20: {log}/000001.head has no line for it"]


def test_lines_of_the_head_file_that_changed_places_are_found(log: Path) -> None:
    head = lines(log)
    head[19], head[20] = head[20], head[19]
    put(log, head)

    assert first(log) == 20


def test_a_line_that_was_put_into_the_head_file_is_found(log: Path) -> None:
    put(log, [*lines(log), f"43 {'0' * 64} 1.000\n"])
    assert faults(log) == ["entry 43: it is missing"]

    put(log, [*lines(log)[:-1], "I was here\n"])
    assert faults(log)[0] == f"{log}/000001.head has a malformed line, before byte " + str(
        (log / "000001.head").stat().st_size
    )


def test_a_changed_hash_in_the_head_file_is_found(log: Path) -> None:
    head = lines(log)
    head[19] = f"20 {'0' * 64} 1.000\n"
    put(log, head)

    assert faults(log) == [f"entry 20: {log}/000001.head has another hash for it"]


def test_a_rewrite_of_both_files_is_found_only_by_a_head_that_was_kept_elsewhere(log: Path) -> None:
    noted = verify_log(log).last.hash
    assert verify_log(log, noted).sound
    change(log, "UPDATE entries SET about = 'nothing' WHERE seq = 20")
    rewrite(log, 20, heads=True)

    assert verify_log(log).sound
    assert faults(log, noted) == [f"no entry has the hash {noted}: the log was cut or rewritten since then"]


def test_the_ends_of_both_files_cut_off_alike_are_found_by_a_head_that_was_kept_elsewhere(log: Path) -> None:
    earlier, noted = found(log)[9].hash, verify_log(log).last.hash
    change(log, "DELETE FROM entries WHERE seq > 30")
    put(log, lines(log)[:30])

    assert verify_log(log, earlier).sound
    assert not verify_log(log, noted).sound


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("suffix", ["db", "head"])
def test_a_segments_file_that_was_taken_away_is_found(segments: Path, number: int, suffix: str) -> None:
    begin = 1 if number == 1 else next(row.seq for row in found(segments) if row.seq > last_of(segments, number - 1))
    (segments / f"{number:06}.{suffix}").unlink()

    assert first(segments) == begin


def last_of(directory: Path, number: int) -> int:
    return int(lines(directory, number)[-1].split()[0])


@pytest.mark.parametrize("number", [1, 2])
def test_a_whole_segment_that_was_taken_away_is_found(segments: Path, number: int) -> None:
    begin = 1 if number == 1 else last_of(segments, number - 1) + 1
    for suffix in ("db", "head"):
        (segments / f"{number:06}.{suffix}").unlink()

    assert first(segments) == begin


def test_segments_that_changed_places_are_found(segments: Path) -> None:
    for suffix in ("db", "head"):
        one, two = (segments / f"{number:06}.{suffix}" for number in (2, 3))
        one.rename(segments / "kept")
        two.rename(one)
        (segments / "kept").rename(two)

    assert first(segments) == last_of(segments, 1) + 1


def damage(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(os.urandom(8192))


def scribble(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_table(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE entries")
        connection.execute("CREATE TABLE entries (seq INTEGER PRIMARY KEY, about BLOB)")
        connection.execute("INSERT INTO entries VALUES (1, x'00')")
    connection.close()


def blobs(path: Path) -> None:
    columns = ", ".join(Row._fields[1:])
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE entries RENAME TO before")
        connection.execute(f"CREATE TABLE entries (seq INTEGER PRIMARY KEY, {columns})")
        connection.execute(f"INSERT INTO entries SELECT seq, {columns} FROM before")
        connection.execute("UPDATE entries SET about = x'ff', together = 'x' WHERE seq = (SELECT max(seq) FROM before)")
    connection.close()


@pytest.mark.parametrize("spoil", [damage, scribble, empty, other_table, blobs])
@pytest.mark.parametrize("number", [1, 2, 99])
def test_a_segment_that_was_spoilt_is_found_and_the_others_are_looked_at(
    segments: Path, spoil: Callable[[Path], None], number: int
) -> None:
    number = min(number, len(list(segments.glob("*.db"))))
    spoil(segments / f"{number:06}.db")

    report = verify_log(segments)

    assert not report.sound
    assert report.segments == len(list(segments.glob("*.db")))
    assert all(f"{other:06}" not in str(fault) for fault in report.faults for other in (3, 4))


@settings(max_examples=rounds(75), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_of_the_head_file_that_were_changed_are_found(pristine: Path, data: st.DataObject) -> None:
    directory = pristine.parent / "changed"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(pristine, directory)
    path = directory / "000001.head"
    before = path.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    byte = data.draw(st.integers(0, 255))
    path.write_bytes(before[:at] + bytes([byte]) + before[at + 1 :])

    line = before[:at].count(b"\n")
    column = at - (before.rfind(b"\n", 0, at) + 1)
    is_time = column > len(str(line + 1)) + 66 and before[at : at + 1] != b"\n"
    still_a_time = is_time and (48 <= byte <= 57 or before[at] == byte)

    if before[at] == byte or still_a_time:
        assert verify_log(directory).sound  # when a line was written is for people only
    elif line == 41 and before[at : at + 1] == b"\n":
        assert verify_log(directory).unheaded == 1  # a last line without an end, as when a kernel is killed
    else:
        assert not verify_log(directory).sound


@settings(max_examples=rounds(50), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(set(CHANGES) - {"hash"})), st.integers(1, 42), st.integers(), st.text())
def test_any_field_of_any_row_that_was_changed_is_found(
    pristine: Path, column: str, seq: int, number: int, text: str
) -> None:
    directory = pristine.parent / "changed"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(pristine, directory)
    value: object = (
        number % 2**62 if isinstance(CHANGES[column], int | float) else text.encode(errors="replace").decode()
    )
    with opened(directory) as connection:
        before = Row._make(connection.execute(f"{SELECT} WHERE seq = ?", (seq,)).fetchone())
        connection.execute(f"UPDATE entries SET {column} = ? WHERE seq = ?", (value, seq))
        after = Row._make(connection.execute(f"{SELECT} WHERE seq = ?", (seq,)).fetchone())

    assert (first(directory) == seq) if before != after else sound(directory)
