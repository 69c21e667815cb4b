"""What the state directory holds: every file and row is counted once, for its owner and kind."""

import os
import tempfile
from pathlib import Path

import pytest

from agentos.boot.run import SCHEMAS
from agentos.database import open_database
from agentos.services.events import discard
from agentos.services.state.batch import StateLimits
from agentos.services.state.state import State
from agentos.services.storage import kinds
from agentos.services.storage.kinds import Content, Held, Kind, measure_files, measure_path, measure_storage
from tests.services.state.test_state import store
from tests.support.runs.rows import each_row

BLOCK = 64 << 10  # bytes


def put(path: Path, size: int = BLOCK) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def sizes(found: list[Held]) -> dict[tuple[str, str], int]:
    assert len({held[:2] for held in found}) == len(found)
    return {(held.owner, held.kind): held.size for held in found}


@each_row(
    ("file", "owner", "kind"),
    [
        ("workspaces/web.img", "web", "workspaces"),
        ("workspaces/web/src/deep/a.txt", "web", "workspaces"),
        ("logs/web-1.2.3.jsonl", "web-1", "logs"),
        ("logs/kernel.7.1.jsonl", "kernel", "logs"),
        ("logs/notes.txt", "kernel", "logs"),
        ("recordings/web-2-17.recording/calls.jsonl", "web-2", "recordings"),
        ("recordings/recording-1.recording/calls.jsonl", "operator", "recordings"),
        ("audit/000001.db", "kernel", "audit"),
        ("events/3.jsonl", "kernel", "events"),
        ("dashboard/sessions.json", "kernel", "dashboard"),
        ("mcp/clients/desk.json", "kernel", "mcp"),
        ("agentos.db-shm", "kernel", "database"),
        ("outer-ids.json", "kernel", "other"),
        ("workspaces.old/x", "kernel", "other"),
        ("backup/logs/web.1.1.jsonl", "kernel", "other"),
    ],
)
def test_a_file_has_an_owner_and_a_kind(tmp_path: Path, file: str, owner: str, kind: str) -> None:
    place = tmp_path / str(len(os.listdir(tmp_path)))
    place.mkdir()
    put(place / file)

    [found] = measure_files(place)

    assert (found.owner, found.kind) == (owner, kind)
    assert found.size >= BLOCK


def test_all_is_counted_once(tmp_path: Path) -> None:
    for file in ("workspaces/a/x", "workspaces/b.img", "logs/a.1.1.jsonl", "logs/a.1.2.jsonl", "audit/1", "run.json"):
        put(tmp_path / file)
    os.link(tmp_path / "workspaces/a/x", tmp_path / "workspaces/a/y")
    (tmp_path / "link").symlink_to("/usr")
    (tmp_path / "workspaces/c").symlink_to("/usr")

    found = measure_storage(tmp_path)

    whole = measure_path(tmp_path)
    of_directories = sum(measure_path(tmp_path / name).inodes > 0 for name in ("workspaces", "logs")) + 1
    assert sum(held.entries for held in found) == whole.inodes - of_directories
    assert sizes(found)["a", "workspaces"] < 2 * BLOCK
    assert sizes(found)["a", "logs"] == 2 * BLOCK
    assert found == sorted(found, key=lambda held: -held.size)


async def test_state_is_its_owners_and_the_rest_of_the_database_is_the_kernels(tmp_path: Path) -> None:
    async with open_database(tmp_path / "agentos.db", SCHEMAS) as database:
        state = await State.load(database, StateLimits(100, 1 << 20), discard)
        for account in ("web", "boss/worker", ""):
            await store(state, "key", b"x" * 9000, space=account, account=account)
        running = sizes(measure_storage(tmp_path))  # while it is written to
    stopped = sizes(measure_storage(tmp_path))

    for found in (running, stopped):
        assert found["web", "state"] == found["boss/worker", "state"] == found["operator", "state"] == 9000 + len("key")
        assert found["kernel", "database"] >= 0
    assert sum(stopped.values()) == measure_path(tmp_path / "agentos.db").size
    assert os.listdir(tmp_path) == ["agentos.db"]


async def test_a_new_kind_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", (Kind("snapshots", "snapshots", lambda name: name.partition("@")[0]),))
    monkeypatch.setattr(kinds, "CONTENTS", (Content("mail", "mail", "owner", "length(message)"),))
    put(tmp_path / "snapshots" / "web@1")
    async with open_database(tmp_path / "agentos.db", {"mail": ["CREATE TABLE mail (owner TEXT, message BLOB)"]}) as db:
        await db.write(lambda connection: connection.execute("INSERT INTO mail VALUES ('web', 'hello')").rowcount)

    found = sizes(measure_storage(tmp_path))

    assert found["web", "snapshots"] >= BLOCK
    assert found["web", "mail"] == 5


def test_a_workspace_that_its_agent_has_closed_hinders_no_measurement() -> None:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made:
        place, user = Path(made), os.geteuid()
        put(place / "audit" / "000001.db")
        closed = place / "workspaces" / "web"
        closed.mkdir(parents=True)
        closed.chmod(0)
        for path in (place, *place.rglob("*")):
            os.chown(path, user or 65534, -1)
        os.seteuid(user or 65534)  # root may open all
        try:
            found = sizes(measure_files(place))
        finally:
            os.seteuid(user)
            closed.chmod(0o700)

    assert set(found) == {("kernel", "audit"), ("web", "workspaces")}
    assert found["kernel", "audit"] >= BLOCK


def test_an_empty_directory_holds_nothing(tmp_path: Path) -> None:
    assert measure_storage(tmp_path) == []
    (tmp_path / "agentos.db").touch()
    assert sizes(measure_storage(tmp_path)) == {("kernel", "database"): 0}
