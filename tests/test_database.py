"""Units of work in one writer's groups: each stands or falls alone, and who goes away tears nothing."""

import logging
import sqlite3
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from outcome import Error, Outcome, Value, acapture, capture

from agentos.database import MAX_QUEUED_UNITS, Database, DatabaseError, open_database
from tests.support.runs.rounds import rounds
from tests.support.wire import PATIENCE

SCHEMAS = {"numbers": ["CREATE TABLE numbers (number INTEGER PRIMARY KEY)"]}


class Refused(Exception):
    """What a unit of work raises of its own."""


@attrs.define
class Gate:
    """Work that is under way until it is let through."""

    begun: threading.Event = attrs.field(factory=threading.Event)
    opened: threading.Event = attrs.field(factory=threading.Event)

    def work(self, connection: sqlite3.Connection) -> int:
        self.begun.set()
        assert self.opened.wait(PATIENCE)
        return insert(0, connection)

    async def reached(self) -> None:
        assert await trio.to_thread.run_sync(self.begun.wait, 30)


def insert(number: int, connection: sqlite3.Connection) -> int:
    connection.execute("INSERT INTO numbers VALUES (?)", (number,))
    return number


def insert_and_fail(number: int, connection: sqlite3.Connection) -> int:
    insert(number, connection)
    raise Refused(number)


def numbers(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT number FROM numbers ORDER BY number")]


async def held(database: Database, nursery: trio.Nursery) -> Gate:
    """The writer is busy from here on, until the gate is opened."""
    gate = Gate()
    nursery.start_soon(database.write, gate.work)
    await gate.reached()
    return gate


async def reopened(path: Path) -> list[int]:
    async with open_database(path, SCHEMAS) as database:
        return await database.write(numbers)


async def test_what_was_written_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database:
        assert await database.write(partial(insert, 7)) == 7
        assert await database.write(numbers) == [7]

    assert await reopened(tmp_path / "db") == [7]


async def test_a_unit_that_fails_is_undone_alone_and_its_caller_alone_hears_of_it(tmp_path: Path) -> None:
    heard: list[str] = []

    async with open_database(tmp_path / "db", SCHEMAS) as database:

        async def fail(number: int) -> None:
            with pytest.raises(Refused, match=str(number)):
                await database.write(partial(insert_and_fail, number))
            heard.append("own")

        async def repeat() -> None:
            with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
                await database.write(partial(insert, 1))
            heard.append("SQLite's")

        async with trio.open_nursery() as nursery:
            gate = await held(database, nursery)
            nursery.start_soon(database.write, partial(insert, 1))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(fail, 2)
            nursery.start_soon(repeat)
            nursery.start_soon(database.write, partial(insert, 3))
            await trio.testing.wait_all_tasks_blocked()
            gate.opened.set()

        assert sorted(heard) == ["SQLite's", "own"]
        assert await database.write(numbers) == [0, 1, 3]


async def test_a_unit_that_is_found_wrong_at_the_commit_is_undone_alone_too(tmp_path: Path) -> None:
    later = "CREATE TABLE later (number INTEGER REFERENCES numbers DEFERRABLE INITIALLY DEFERRED)"

    async with open_database(tmp_path / "db", {"numbers": [*SCHEMAS["numbers"], later]}) as database:

        async def promise_what_never_comes() -> None:
            with pytest.raises(DatabaseError, match="FOREIGN KEY constraint failed"):
                await database.write(lambda db: db.execute("INSERT INTO later VALUES (99)").rowcount)

        async with trio.open_nursery() as nursery:
            gate = await held(database, nursery)
            nursery.start_soon(database.write, partial(insert, 1))
            nursery.start_soon(promise_what_never_comes)
            nursery.start_soon(database.write, partial(insert, 2))
            await trio.testing.wait_all_tasks_blocked()
            gate.opened.set()

        assert await database.write(numbers) == [0, 1, 2]
        assert await database.write(lambda db: db.execute("SELECT * FROM later").fetchall()) == []


@given(st.lists(st.sampled_from(["written", "failing", "submitted", "withdrawn"]), max_size=40), st.booleans())
@settings(max_examples=rounds(50))
def test_whatever_is_queued_together_what_succeeded_is_there_and_nothing_else(kinds: list[str], wait: bool) -> None:
    async def main(path: Path) -> None:
        succeeded: list[int] = [0]
        raised: list[int] = []

        async def one(number: int, kind: str, scope: trio.CancelScope) -> None:
            work = insert_and_fail if kind == "failing" else insert
            with scope:
                try:
                    succeeded.append(await database.write(partial(work, number)))
                except Refused:
                    raised.append(number)

        async with open_database(path, SCHEMAS) as database, trio.open_nursery() as nursery:
            gate = await held(database, nursery)
            scopes = [trio.CancelScope() for _ in kinds]
            for number, (kind, scope) in enumerate(zip(kinds, scopes, strict=True), 1):
                if kind == "submitted":
                    database.submit(partial(insert, number), "a number")
                    succeeded.append(number)
                else:
                    nursery.start_soon(one, number, kind, scope)
            if wait:
                await trio.testing.wait_all_tasks_blocked()
            for kind, scope in zip(kinds, scopes, strict=True):
                if kind == "withdrawn":
                    scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            gate.opened.set()

        assert len(raised) == kinds.count("failing")
        assert len(succeeded) == 1 + kinds.count("written") + kinds.count("submitted")
        assert await reopened(path) == sorted(succeeded)

    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, Path(directory, "db"))


async def test_what_waits_is_committed_together(tmp_path: Path) -> None:
    statements: list[str] = []

    async with open_database(tmp_path / "db", SCHEMAS) as database:
        await database.write(lambda connection: connection.set_trace_callback(statements.append))
        async with trio.open_nursery() as nursery:
            gate = await held(database, nursery)
            statements.clear()
            for number in range(1, 200):
                nursery.start_soon(database.write, partial(insert, number))
            await trio.testing.wait_all_tasks_blocked()
            gate.opened.set()

        assert statements.count("COMMIT") == 2  # the gate's own, and one for all that had gathered behind it
        assert len(await database.write(numbers)) == 200


async def test_the_event_loop_goes_on_while_the_disk_is_slow(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database, trio.open_nursery() as nursery:
        gate = await held(database, nursery)

        for _ in range(100):
            await trio.lowlevel.checkpoint()  # while the writer's thread waits for us

        gate.opened.set()


async def test_work_that_has_not_begun_is_dropped_when_its_waiter_is_cancelled(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database, trio.open_nursery() as nursery:
        gate = await held(database, nursery)

        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when_blocked, scope)
            await database.write(partial(insert, 1))

        assert scope.cancelled_caught
        gate.opened.set()
        assert await database.write(numbers) == [0]


async def test_work_that_has_begun_is_finished_and_its_result_is_not_lost(tmp_path: Path) -> None:
    gate, results = Gate(), []

    async with open_database(tmp_path / "db", SCHEMAS) as database, trio.open_nursery() as nursery:

        async def write(scope: trio.CancelScope) -> None:
            with scope:
                results.append(await database.write(gate.work))

        scope = trio.CancelScope()
        nursery.start_soon(write, scope)
        await gate.reached()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert results == []
        gate.opened.set()

    assert results == [0]
    assert not scope.cancelled_caught
    assert await reopened(tmp_path / "db") == [0]


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_what_is_queued_when_its_users_are_cancelled_is_written_before_the_file_is_closed(tmp_path: Path) -> None:
    with trio.CancelScope() as everything:
        async with open_database(tmp_path / "db", SCHEMAS) as database:
            everything.cancel()
            try:
                await trio.sleep_forever()
            finally:
                database.submit(partial(insert, 1), "a number")
                with trio.CancelScope(shield=True):
                    await database.write(partial(insert, 2))

    assert everything.cancelled_caught
    assert await reopened(tmp_path / "db") == [1, 2]


async def test_what_is_raised_in_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^7$"):
        async with open_database(tmp_path / "db", SCHEMAS) as database:
            database.submit(partial(insert, 1), "a number")
            raise Refused(7)

    assert await reopened(tmp_path / "db") == [1]


async def test_no_caller_waits_for_ever_for_a_database_that_was_closed(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database:
        pass

    with pytest.raises(DatabaseError, match="it was closed"):
        await database.write(numbers)
    with pytest.raises(DatabaseError, match="it was closed"):
        database.submit(partial(insert, 1), "a number")


async def test_a_full_queue_refuses_callers_that_do_not_wait_and_lets_the_others_wait(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database:
        async with trio.open_nursery() as nursery:
            gate = await held(database, nursery)
            for number in range(1, MAX_QUEUED_UNITS + 1):
                database.submit(partial(insert, number), "a number")

            with pytest.raises(DatabaseError, match=f"{MAX_QUEUED_UNITS} writes are queued already"):
                database.submit(partial(insert, 5000), "a number")
            nursery.start_soon(database.write, partial(insert, 6000))
            await trio.testing.wait_all_tasks_blocked()
            gate.opened.set()

        assert await database.write(numbers) == [*range(MAX_QUEUED_UNITS + 1), 6000]


async def test_a_write_that_no_caller_waits_for_is_in_the_log_when_it_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        async with open_database(tmp_path / "db", SCHEMAS) as database:
            database.submit(partial(insert_and_fail, 1), "the first number")
            database.submit(partial(insert, 2), "the second number")

    assert [record.getMessage() for record in caplog.records] == ["the first number: not written: 1"]
    assert await reopened(tmp_path / "db") == [2]


async def test_work_that_commits_by_itself_is_told_and_the_next_one_is_not_harmed(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", SCHEMAS) as database:
        with pytest.raises(DatabaseError, match="no such savepoint"):
            await database.write(lambda connection: connection.execute("COMMIT").fetchall())

        assert await database.write(partial(insert, 1)) == 1


# -- Batches -----------------------------------------------------------------------------------------------------------


async def test_what_waits_together_is_passed_to_its_batch_together_and_in_order(tmp_path: Path) -> None:
    calls, results = list[list[int]](), dict[int, Outcome[int]]()

    def add(items: Sequence[int], connection: sqlite3.Connection) -> Sequence[Outcome[int]]:
        calls.append(list(items))
        return [capture(refuse_odd, item, connection) for item in items]

    def refuse_odd(number: int, connection: sqlite3.Connection) -> int:
        if number % 2:
            raise Refused(number)
        return insert(number, connection)

    async def write(number: int) -> None:
        results[number] = await acapture(database.write_in_batch, add, number)

    async with open_database(tmp_path / "db", SCHEMAS) as database, trio.open_nursery() as nursery:
        gate = await held(database, nursery)
        for number in range(1, 5):
            nursery.start_soon(write, number)
            await trio.testing.wait_all_tasks_blocked()
        gate.opened.set()
    async with open_database(tmp_path / "db", SCHEMAS) as database:
        assert await database.write(numbers) == [0, 2, 4]

    assert calls == [[1, 2, 3, 4]]
    assert [isinstance(results[number], Error) for number in range(1, 5)] == [True, False, True, False]


async def test_work_begun_without_a_task_tells_its_outcome_or_is_dropped(tmp_path: Path) -> None:
    told = list[Outcome[int]]()

    def add(items: Sequence[int], connection: sqlite3.Connection) -> Sequence[Outcome[int]]:
        return [Value(insert(item, connection)) for item in items]

    async with open_database(tmp_path / "db", SCHEMAS) as database:
        async with trio.open_nursery() as nursery:
            gate = await held(database, nursery)
            drop = [database.begin_in_batch(add, number, told.append) for number in (1, 2)]
            assert drop[0]()
            gate.opened.set()
        assert await database.write(numbers) == [0, 2]
        assert told == [Value(2)]
        assert drop[0](), "it stays dropped"
        assert not drop[1]()
    with pytest.raises(DatabaseError, match="it was closed"):
        database.begin_in_batch(add, 3, told.append)


async def test_a_batch_that_fails_is_run_again_item_by_item(tmp_path: Path) -> None:
    results = dict[int, Outcome[int]]()

    def add(items: Sequence[int], connection: sqlite3.Connection) -> Sequence[Outcome[int]]:
        return [Value(insert(item, connection)) for item in items]

    async def write(number: int) -> None:
        results[number] = await acapture(database.write_in_batch, add, number)

    async with open_database(tmp_path / "db", SCHEMAS) as database, trio.open_nursery() as nursery:
        gate = await held(database, nursery)
        for number in (1, 0, 2):  # 0 is the gate's
            nursery.start_soon(write, number)
        gate.opened.set()
    async with open_database(tmp_path / "db", SCHEMAS) as database:
        assert await database.write(numbers) == [0, 1, 2]

    assert [number for number, result in results.items() if isinstance(result, Error)] == [0]
