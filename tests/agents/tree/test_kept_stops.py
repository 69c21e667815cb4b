"""Agents that stay stopped: what was said of them is what the next kernel finds."""

from pathlib import Path

from agentos.agents.tree.kept_stops import TABLES, KeptStops
from agentos.database import open_database


async def test_what_stays_stopped_is_on_disk_until_it_is_started_or_not_declared_any_more(tmp_path: Path) -> None:
    async def find() -> list[str | None]:
        """As the kernel that runs, and the next one, have it."""
        following = await KeptStops.load(database)
        assert [following.find(name) for name in "abc"] == [kept.find(name) for name in "abc"]
        return [kept.find(name) for name in "abc"]

    async with open_database(tmp_path / "db", {"kept_stops": TABLES}) as database:
        kept = await KeptStops.load(database)
        await kept.add(["a", "b"], "ann")
        assert await find() == ["ann", "ann", None]
        await kept.add(["b", "c"], "bob")
        assert await find() == ["ann", "bob", "bob"]
        await kept.remove(["a", "unknown"])
        assert await find() == [None, "bob", "bob"]
        await kept.forget_others({"c"})
        assert await find() == [None, None, "bob"]
