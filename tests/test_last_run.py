"""The record of a run: what is said of a kernel that was killed, and which databases are refused."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentos.boot.last_run import (
    DatabaseCheck,
    Doing,
    RunRecord,
    RunRecorder,
    check_database,
    describe_kill,
    describe_loss,
    host_boot,
    read_record,
)
from agentos.database import DatabaseError, open_database
from agentos.database_file import Identity
from agentos.permissions.approvals.entries import TABLES as APPROVALS
from agentos.permissions.approvals.entries import load
from agentos.services.ids import TABLES as IDS
from agentos.services.ids import open_ids
from tests.support.runs.rows import each_row

AT = RunRecord(host_boot(), 1.0, database=Identity("a", 7), synced=5)
AFTER_POWER_FAILURE = replace(AT, host="another boot")


@each_row(
    ("last", "found", "why"),
    [
        (AT, Identity("a", 7), None),
        (AT, Identity("a", 8), None),
        (AT, Identity("a", 6), "older than the last kernel left it (6 commits instead of 7)"),
        (AT, Identity("b", 9), "another database"),
        (AT, Identity(), "another database"),
        (AT, None, "it is missing or empty"),
        (AFTER_POWER_FAILURE, Identity("a", 5), None),
        (AFTER_POWER_FAILURE, Identity("a", 4), "older than the last kernel left it (4 commits instead of 5)"),
        (None, Identity(), None),
        (None, Identity("a", 1), None),
        (None, None, None),
    ],
)
def test_a_database_that_is_not_the_last_kernels_is_refused(
    tmp_path: Path, last: RunRecord | None, found: Identity | None, why: str | None
) -> None:
    if why is None:
        check_database(last, tmp_path, found)
        return
    with pytest.raises(DatabaseError, match=r"--accept-lost-state") as caught:
        check_database(last, tmp_path, found)
    assert why in str(caught.value)


def test_a_new_database_beside_an_audit_log_is_refused_without_a_record_as_well(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    check_database(None, tmp_path, None)
    (tmp_path / "audit/000001.db").write_bytes(b"SQLite")

    with pytest.raises(DatabaseError, match="missing or empty"):
        check_database(None, tmp_path, None)


@each_row(
    ("last", "text"),
    [
        (None, None),
        (replace(AT, ended=True), None),
        (AT, "the last kernel was killed; at * no agent ran; lost with it: nothing that waited"),
        (
            replace(AT, doing=Doing(("a", "b"), 2, messages=1, calls=2, approvals=3)),
            "the last kernel was killed; at * these ran: a, b; "
            "lost with it: 1 unread message, 2 unanswered calls, 3 waiting approvals",
        ),
        (
            replace(AT, doing=Doing(tuple("abcdefghij"), 10)),
            "the last kernel was killed; at * these ran: a, b, c, d, e, f, g, h, i, j; "
            "lost with it: nothing that waited",
        ),
        (
            replace(AFTER_POWER_FAILURE, doing=Doing(tuple(f"a{number}" for number in range(12)), 200, messages=2)),
            "the last kernel didn't end in order, and the host was started anew since; at * these ran: "
            "a0, a1, a2, a3, a4, a5, a6, a7, a8, a9 and 190 more; lost with it: 2 unread messages",
        ),
    ],
)
def test_what_is_said_of_a_kernel_that_did_not_end_in_order(last: RunRecord | None, text: str | None) -> None:
    event = describe_kill(last)

    if text is None or event is None:
        assert (event, text) == (None, None)
    else:
        begin, end = text.split("*")
        assert (event.text[: len(begin)], event.text[len(begin) + 19 :]) == (begin, end)


@each_row(
    ("last", "text"),
    [
        (None, None),
        (replace(AT, ended=True), None),
        (replace(AT, doing=Doing(messages=1)), None),
        (replace(AT, ended=True, doing=Doing(messages=1)), "1 unread message in memory"),
    ],
)
def test_an_orderly_end_has_lost_what_was_in_memory_alone(last: RunRecord | None, text: str | None) -> None:
    assert (describe_loss(last) or "").endswith(text or "")
    assert (describe_loss(last) is None) == (text is None)


async def test_a_run_is_recorded_from_its_begin_to_its_end(tmp_path: Path) -> None:
    doing = Doing(("a",), 1, messages=2, calls=3)
    recorder = RunRecorder(tmp_path, look=lambda: doing)
    async with recorder.keep():
        assert read_record(tmp_path) is None
        async with open_database(tmp_path / "agentos.db", {}) as database:
            await recorder.begin(database)
            begun = read_record(tmp_path)
            assert begun is not None
            assert (begun.ended, begun.doing) == (False, doing)
            await database.write(lambda connection: connection.execute("SELECT 1").fetchone())
            await database.write(lambda connection: connection.execute("INSERT INTO owners VALUES ('x', 1)").rowcount)
    ended = read_record(tmp_path)

    assert ended is not None
    assert (ended.ended, ended.doing, ended.synced) == (True, Doing(messages=2), begun.database.commits + 1)
    assert ended.database == Identity(begun.database.id, ended.synced)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["missing", "empty"])
async def test_a_file_that_is_refused_is_left_as_it_was(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    path, seen = tmp_path / "agentos.db", list[Identity | None]()

    def refuse(found: Identity | None) -> None:
        seen.append(found)
        raise DatabaseError("refused")

    async with open_database(path, {}):
        pass
    with pytest.raises(DatabaseError, match="refused"):
        async with open_database(path, {}, refuse):
            pass
    damage(path)
    with pytest.raises(DatabaseError, match="refused"):
        async with open_database(path, {}, refuse):
            pass

    assert [one.commits if one is not None else None for one in seen] == [0, None]
    assert not path.exists() or not path.read_bytes()


def test_a_record_that_cannot_be_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "last-run.json").write_text("{")

    assert read_record(tmp_path) is None
    assert "it isn't known how the last kernel ended" in caplog.text


@each_row(
    ("found", "lost"),
    [(Identity("a", 7), False), (Identity("a", 6), True), (Identity("b", 9), True), (None, True)],
)
async def test_ids_that_a_lost_database_may_have_given_are_given_by_none(
    tmp_path: Path, found: Identity | None, lost: bool
) -> None:
    check = DatabaseCheck(AT, tmp_path, accepted=True)
    check(found)
    given = check.find_given()
    assert (given > 1_000_000_000) is lost

    schemas, path = {"approvals": APPROVALS, "ids": IDS}, tmp_path / f"{found}.db"
    async with open_database(path, schemas) as database:
        assert (await database.write(partial(load, above=given)))[0] == given
        async with open_ids(database, "messages", above=given) as ids:
            number = next(ids)
            assert number == given + 1

    async with open_database(path, schemas) as database:
        assert (await database.write(load))[0] == given
        async with open_ids(database, "messages") as ids:
            assert next(ids) == number + 1
