"""What agents have used by day, in a database that an earlier release may have made."""

import sqlite3
import time
from pathlib import Path

import pytest

from agentos.database import open_database
from agentos.services.usage import TABLES, Row, UsageLog, day_of
from agentos_sdk.values import MAX_USAGE_ROWS, Usage

NOON = 1_800_014_400.0
TODAY = day_of(NOON)


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that runs at midnight ends on the day that it began."""
    monkeypatch.setattr(time, "time", lambda: NOON)


async def test_cached_input_is_added_up_by_day_and_kept(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", {"usage": TABLES}) as database:
        log = UsageLog(database)
        for used in (Usage(10, 1, 1, 6, 3), Usage(20, 0, 0, 20)):
            log.add_model_use("writer#1", "claude-x", 1, used, 5)
            await log.write()
        log.add_life_use("writer", 0.5, 1000)
        await log.write()

    async with open_database(tmp_path / "db", {"usage": TABLES}) as database:
        [row] = await UsageLog(database).read("writer", TODAY)
    assert (row.tokens, row.calls, row.cost, row.cache_read, row.cache_creation) == (32, 2, 10, 26, 3)


async def test_the_database_of_a_release_without_cached_input_opens_with_its_rows(tmp_path: Path) -> None:
    before = "INSERT INTO usage VALUES ('writer', ?, 7, 1, NULL, 0.5, 1000)"
    async with open_database(tmp_path / "db", {"usage": TABLES[:1]}) as database:
        await database.write(lambda connection: connection.execute(before, [TODAY]))

    async with open_database(tmp_path / "db", {"usage": TABLES}) as database:
        log = UsageLog(database)
        assert await log.read(None, TODAY) == [Row("writer", TODAY, 7, 1, None, 0.5, 1000)]
        log.add_model_use("writer", "claude-x", 1, Usage(5, cache_read=4), 1)
        assert await log.read(None, TODAY) == [Row("writer", TODAY, 12, 2, None, 0.5, 1000, 4)]


async def test_the_total_of_many_days_leaves_none_out(tmp_path: Path) -> None:
    days = [day_of(NOON - number * 86400) for number in range(30)]
    names = [f"agent-{number}" for number in range(400)]
    async with open_database(tmp_path / "db", {"usage": TABLES}) as database:
        log = UsageLog(database)
        rows = [(name, day, 10, 1, 5, 0.5, 100 + number) for number, day in enumerate(days) for name in names]
        of_model = [(name, day, "x", 10, 1, 5, 4, 2) for day in days for name in names]

        def fill(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)", rows)
            connection.executemany("INSERT INTO model_usage VALUES (?, ?, ?, ?, ?, ?, ?, ?)", of_model)
            connection.execute("UPDATE usage SET cost = NULL WHERE name = 'agent-7' AND day = ?", [TODAY])
            connection.execute("UPDATE usage SET cost = 50 WHERE name = 'agent-9' AND day = ?", [TODAY])

        await database.write(fill)
        assert len(await log.read(None, days[-1])) == MAX_USAGE_ROWS < len(rows)

        found = await log.read(None, days[-1], total=True)
        by_name = {row.name: row for row in found}
        assert found[0] == Row("agent-9", TODAY, 300, 30, 195, 15.0, 129)
        assert (len(found), by_name["agent-7"].cost, by_name["agent-8"].cost) == (400, None, 150)
        assert await log.read("agent-8", days[4], total=True) == [Row("agent-8", TODAY, 50, 5, 25, 2.5, 104)]
        models = await log.read(None, days[-1], by_model=True, total=True)
        assert len(models) == 400
        assert models[0].model == "x"
        assert (models[0].tokens, models[0].cache_read, models[0].cpu_seconds) == (300, 120, None)


async def test_use_is_counted_by_model_too_and_outlives_the_kernel(tmp_path: Path) -> None:
    async with open_database(tmp_path / "db", {"usage": TABLES}) as database:
        log = UsageLog(database)
        for name, model, cost in (("a", "x", 5), ("a", "y", None), ("a", "x", 7), ("b", "x", 1)):
            log.add_model_use(name, model, 1, Usage(10, 1, cache_read=4), cost)
        log.add_life_use("a", 0.5, 1000)
        await log.write()
        log.add_model_use("b", "x", 1, Usage(1), 2)
        log.write_later()

    async with open_database(tmp_path / "db", {"usage": TABLES}) as database:
        log = UsageLog(database)
        found = [
            (row.name, row.model, row.tokens, row.calls, row.cost) for row in await log.read(None, TODAY, by_model=True)
        ]
        assert found == [("a", "x", 22, 2, 12), ("a", "y", 11, 1, None), ("b", "x", 12, 2, 3)]
        assert [row.model for row in await log.read("b", TODAY, by_model=True)] == ["x"]
        assert [(row.name, row.tokens, row.model) for row in await log.read(None, TODAY)] == [
            ("a", 33, None),
            ("b", 12, None),
        ]
