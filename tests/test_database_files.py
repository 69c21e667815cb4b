"""The database's file: made, brought up to date, or refused with what to do about it, and never harmed."""

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.database import DatabaseError, open_database
from agentos.database_file import Schemas, connect

NUMBERS = "CREATE TABLE numbers (number INTEGER PRIMARY KEY)"
NAMES = "CREATE TABLE names (name TEXT)"


async def opened(path: Path, schemas: Schemas, *sql: str) -> list[object]:
    async with open_database(path, schemas) as database:
        return await database.write(lambda db: [db.execute(one).fetchall() for one in sql])


def make(path: Path, *sql: str) -> None:
    connection = sqlite3.connect(path)
    for one in sql:
        connection.execute(one)
    connection.commit()
    connection.close()


def modes(directory: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in directory.iterdir()}


async def test_only_its_owner_can_read_it_while_it_is_open_too(tmp_path: Path) -> None:
    path = tmp_path / "agentos.db"
    path.touch(0o644)

    async with open_database(path, {"numbers": [NUMBERS]}) as database:
        await database.write(lambda db: db.execute("INSERT INTO numbers VALUES (1)").rowcount)

        assert modes(tmp_path) == {
            "agentos.db": 0o600,
            "agentos.db-wal": 0o600,
            "agentos.db-shm": 0o600,
        }


async def test_a_power_cut_can_not_damage_it(tmp_path: Path) -> None:
    found = await opened(tmp_path / "agentos.db", {}, "PRAGMA journal_mode", "PRAGMA synchronous")

    assert found == [[("wal",)], [(1,)]]  # 1: NORMAL


def test_a_durable_one_waits_for_the_disk_at_each_commit(tmp_path: Path) -> None:
    connection = connect(tmp_path / "agentos.db", {"numbers": [NUMBERS]}, durable=True)
    try:
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]  # FULL
        assert connection.execute("SELECT * FROM numbers").fetchall() == []
    finally:
        connection.close()


async def test_every_owner_gets_the_steps_that_its_tables_lack(tmp_path: Path) -> None:
    path = tmp_path / "agentos.db"
    await opened(path, {"numbers": [NUMBERS]}, "INSERT INTO numbers VALUES (1)")

    later = {"numbers": [NUMBERS, "ALTER TABLE numbers ADD name TEXT"], "names": [NAMES]}

    assert await opened(path, later, "SELECT * FROM numbers", "SELECT * FROM names") == [[(1, None)], []]
    assert await opened(path, {}, "SELECT * FROM owners ORDER BY name") == [
        [("names", 1), ("numbers", 2), ("witness", 1)]
    ]


async def test_a_step_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "agentos.db"
    await opened(path, {"numbers": [NUMBERS]})

    with pytest.raises(DatabaseError, match=r"agentos\.db: table numbers already exists"):
        await opened(path, {"names": [NAMES], "numbers": [NUMBERS, NUMBERS]})

    assert await opened(path, {}, "SELECT * FROM owners") == [[("numbers", 1), ("witness", 1)]]


async def test_what_a_newer_version_wrote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agentos.db"
    await opened(path, {"numbers": [NUMBERS, NAMES]})

    with pytest.raises(DatabaseError, match=r"newer version \(it has numbers 2, this one knows 1\): use that one, or"):
        await opened(path, {"numbers": [NUMBERS]})

    assert await opened(path, {"numbers": [NUMBERS, NAMES]}, "SELECT * FROM names") == [[]]


def scribble(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)


def somebody_elses(path: Path) -> None:
    make(path, "CREATE TABLE cookies (name TEXT)")


def somebody_elses_by_its_header(path: Path) -> None:
    make(path, "PRAGMA application_id = 77")


def damage_a_page(path: Path) -> None:
    make(path, f"PRAGMA application_id = {0x41474E54}", NAMES, *["INSERT INTO names VALUES (zeroblob(900))"] * 50)
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(os.urandom(4096))


def cut_off(path: Path) -> None:
    damage_a_page(path)
    os.truncate(path, 5000)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (scribble, "file is not a database: move it away"),
        (somebody_elses, "a database of another program: move it away"),
        (somebody_elses_by_its_header, "a database of another program: move it away"),
        (damage_a_page, "it is damaged: restore a backup, or move it away"),
        (cut_off, "it is damaged: restore a backup, or move it away"),
    ],
)
async def test_a_file_that_is_not_ours_or_not_whole_is_named_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None], told: str
) -> None:
    path = tmp_path / "agentos.db"
    spoil(path)
    before = path.read_bytes()

    with pytest.raises(DatabaseError) as caught:
        await opened(path, {"numbers": [NUMBERS]})

    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


async def test_a_file_that_another_program_writes_to_is_waited_for_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentos.database_file.BUSY_TIMEOUT", 0.05)
    path = tmp_path / "agentos.db"
    await opened(path, {})
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(DatabaseError, match="another program has it locked: stop that program"):
        await opened(path, {"numbers": [NUMBERS]})

    other.execute("COMMIT")
    other.close()
    await opened(path, {"numbers": [NUMBERS]})


async def test_a_place_where_no_file_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()

    missing = "No such file or directory: choose another directory with --state-dir"
    for path, told in (("directory", "is not a regular file: move it away"), ("missing/agentos.db", missing)):
        with pytest.raises(DatabaseError) as caught:
            await opened(tmp_path / path, {})
        assert str(caught.value).startswith(f"{tmp_path / path}: {told}"), caught.value
