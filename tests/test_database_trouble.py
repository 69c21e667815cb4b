"""The database when its process is killed, its disk is full or read-only, and no thread is to be had."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from agentos.database import DatabaseError, open_database
from tests.support.mounts import small_disk
from tests.support.wire import PATIENCE

SCHEMAS = {"pairs": ["CREATE TABLE pairs (id INTEGER PRIMARY KEY, left INTEGER, right INTEGER, ballast BLOB)"]}


def python(source: str, *arguments: str) -> "subprocess.Popen[str]":
    env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, text=True, env=env)


WRITERS = """
import sys, trio
from pathlib import Path
from agentos.database import open_database
from tests.test_database_trouble import SCHEMAS

def insert(connection):
    number = connection.execute("INSERT INTO pairs (left) VALUES (random()) RETURNING id").fetchone()[0]
    connection.execute("UPDATE pairs SET right = left, ballast = zeroblob(500) WHERE id = ?", (number,))
    return number

async def write(database):
    while True:
        print(await database.write(insert), flush=True)

async def main():
    async with open_database(Path(sys.argv[1]), SCHEMAS) as database, trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(write, database)

trio.run(main)
"""


async def test_kill_9_loses_nothing_that_was_acknowledged_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    acknowledged: list[int] = []

    for _ in range(5):  # each goes on with the file of the one that was killed, and what SQLite left beside it
        with python(WRITERS, str(tmp_path / "db")) as writers:
            assert writers.stdout is not None
            try:
                acknowledged += [int(writers.stdout.readline()) for _ in range(400)]
            finally:
                writers.send_signal(signal.SIGKILL)
            acknowledged += [int(line) for line in writers.stdout if line.endswith("\n")]

    async with open_database(tmp_path / "db", SCHEMAS) as database:
        whole = "SELECT id FROM pairs WHERE left = right AND length(ballast) = 500"
        found = await database.write(lambda db: [number for (number,) in db.execute(whole)])
        (rows,) = await database.write(lambda db: db.execute("SELECT count(*) FROM pairs").fetchone())
    assert len(acknowledged) == len(set(acknowledged)) >= 2000
    assert set(acknowledged) <= set(found)
    assert rows == len(found)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    with small_disk(place, "1M"):
        yield place


def fill(place: Path) -> Path:
    """Take all the room that is left."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return ballast
    raise AssertionError("it isn't full")


def insert(connection: sqlite3.Connection) -> int:
    connection.execute("INSERT INTO pairs (ballast) VALUES (zeroblob(20000))")
    (rows,) = connection.execute("SELECT count(*) FROM pairs").fetchone()
    assert isinstance(rows, int)
    return rows


async def test_a_full_disk_is_told_to_the_writer_alone_and_goes_by(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = small / "db"

    async with open_database(path, SCHEMAS) as database:
        assert await database.write(insert) == 1
        ballast = fill(small)

        with pytest.raises(DatabaseError, match=f"{path}: .*: free some room on its file system"):
            while True:
                await database.write(insert)
        database.submit(insert, "a pair")
        count = await database.write(lambda db: db.execute("SELECT count(*) FROM pairs").fetchone()[0])
        assert "a pair: not written: " in caplog.text

        await trio.Path(ballast).unlink()
        assert await database.write(insert) == count + 1

    async with open_database(path, SCHEMAS) as database:
        assert await database.write(insert) == count + 2


async def test_a_write_without_enough_room_does_not_undo_the_others_in_the_same_group(small: Path) -> None:
    path = small / "db"
    begun, opened = threading.Event(), threading.Event()
    rows: list[int] = []

    async with open_database(path, SCHEMAS) as database, trio.open_nursery() as nursery:

        def hold(_: sqlite3.Connection) -> None:
            begun.set()
            assert opened.wait(PATIENCE)

        async def ask_too_much() -> None:
            with pytest.raises(DatabaseError, match="free some room"):
                await database.write(lambda db: db.execute("INSERT INTO pairs (ballast) VALUES (zeroblob(2000000))"))

        async def ask_little() -> None:
            rows.append(await database.write(insert))

        nursery.start_soon(database.write, hold)
        assert await trio.to_thread.run_sync(begun.wait, 30)
        for each in (ask_little, ask_too_much, ask_little):
            nursery.start_soon(each)
        await trio.testing.wait_all_tasks_blocked()
        opened.set()

    assert sorted(rows) == [1, 2]


async def test_where_there_is_no_room_to_begin_with_that_is_said(small: Path) -> None:
    path = small / "db"
    ballast = fill(small)

    with pytest.raises(DatabaseError, match=f"{path}: .*file system"):
        async with open_database(path, SCHEMAS):
            pass

    await trio.Path(ballast).unlink()
    async with open_database(path, SCHEMAS) as database:
        assert await database.write(insert) == 1


async def test_a_read_only_file_system_is_named(small: Path) -> None:
    path = small / "db"
    async with open_database(path, SCHEMAS):
        pass
    await trio.run_process(["mount", "-o", "remount,ro", small])

    with pytest.raises(DatabaseError, match=f"{path}: Read-only file system: choose another directory"):
        async with open_database(path, SCHEMAS):
            pass


NO_THREAD = """
import os, resource, sys, threading, trio
from pathlib import Path
from agentos.database import DatabaseError, open_database

async def main():
    go_on = threading.Event()
    async with open_database(Path(sys.argv[1]), {}) as database:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, go_on.wait)  # takes the only thread that is there
            await trio.testing.wait_all_tasks_blocked()
            if os.geteuid() == 0:
                os.setuid(54321)  # root may always have one more
            resource.setrlimit(resource.RLIMIT_NPROC, (1, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
            try:
                await database.write(lambda db: 1)
            except DatabaseError as error:
                print(error)
            go_on.set()
        print(await database.write(lambda db: 2))

import trio.testing
trio.run(main)
"""


def test_without_a_thread_to_be_had_the_waiter_is_told_and_the_writer_goes_on(tmp_path: Path) -> None:
    with python(NO_THREAD, str(tmp_path / "db")) as process:
        said, _ = process.communicate(timeout=PATIENCE)

    assert said == f"{tmp_path / 'db'}: can't start new thread\n2\n"
