"""The state directory of a former release: today's code finds all that is in it, and that release can go on with it."""

import json
import sqlite3
import tarfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentos.agents.tree.kept_stops import KeptStops
from agentos.agents.workspaces.workspace import list_kept
from agentos.boot.last_run import read_record
from agentos.boot.run import SCHEMAS
from agentos.database import Database, open_database
from agentos.llm.budgets import Budgets
from agentos.llm.settings import Account, Share
from agentos.mcp.pins import Pins
from agentos.mcp.tool import make_tool
from agentos.permissions.approvals import entries
from agentos.permissions.approvals.answers import Answers
from agentos.sandbox.host_id_registry import HostIdRegistry
from agentos.sandbox.host_ids import HostIdPool
from agentos.services.audit.query import Query, iterate_all
from agentos.services.audit.verify import verify_log
from agentos.services.event_log.file import EventFiles
from agentos.services.logs.log import LogSettings, open_logs
from agentos.services.logs.query import LogReader, Selection
from agentos.services.quotas import make_quotas
from agentos.services.state.batch import StateLimits
from agentos.services.state.state import State
from agentos.services.storage.kinds import measure_storage
from agentos.services.usage import UsageLog
from agentos.userland.mcp.clients import list_entries
from agentos.userland.mcp.transports.state_key import load_state_key
from agentos.userland.web.sessions import Sessions
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import environment, until
from tests.system.agents import up
from tests.system.former.make_state import write_programs

ARCHIVES = sorted(Path(__file__).parent.glob("state-*.tar.xz"))
LAST_RELEASE = ARCHIVES[-1]
EVERYTHING = Selection(lambda name, run, origin: True)
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on


def unpack(archive: Path, place: Path) -> None:
    place.mkdir(0o700, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(place, **SAFELY)


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def former(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, a minute after it was made: much of it ends after an hour or a day."""
    unpack(request.param, tmp_path / "state")
    made = (tmp_path / "state" / "agentos.db").stat().st_mtime
    monkeypatch.setattr("time.time", lambda: made + 60)
    return tmp_path / "state"


async def read_rows(database: Database) -> dict[str, object]:
    """What the database has, by today's readers."""
    budgets = await Budgets.load({}, database, 100, time.time())
    account = Account("worker", Share(budget=make_quotas(86400.0, tokens=100_000)))
    state = await State.load(database, StateLimits(100, 1 << 20))
    answers = Answers(database, lambda number: None)
    await answers.load()
    highest, pending = await database.write(entries.load)
    pins = Pins(database, None, None)  # type: ignore[arg-type] # nothing is asked
    await pins.load(["notes"])
    tool = make_tool({"name": "add", "description": "Adds a note.", "inputSchema": {"type": "object"}})
    used = {row.name: row for row in await UsageLog(database).read(None, "2026-01-01")}
    values = [await state.fetch([space], key) for space, key in (("", "plan"), ("worker", "count"))]
    return {
        "state": [value and json.loads(value.value) for value in values],
        "budgets": [one.settled > 0 for one in budgets.budget_states((account,), time.time())],
        "used": (used["worker"].calls, used["worker"].tokens > 0, (used["halted"].cpu_seconds or 0) > 0),
        "stopped": (await KeptStops.load(database)).find("halted"),
        "pending": [(one.id, one.agent, one.call, "second" in one.shown) for one in pending],
        "highest": highest,
        "answers": [(one.subject, one.action, one.allow, "first" in one.object) for one in answers.list()],
        "pinned": [one.name for one in pins.split("notes", [tool]).pinned],
    }


async def test_all_rows_of_the_database_are_there(former: Path) -> None:
    async with open_database(former / "agentos.db", SCHEMAS) as database:
        found = await read_rows(database)

    assert found == {
        "state": [{"until": 100}, 1],
        "budgets": [True],
        "used": (1, True, True),
        "stopped": "operator",
        "pending": [(2, "worker", "EXEC", True)],
        "highest": 3,
        "answers": [("worker", "exec", True, True)],
        "pinned": ["add"],
    }


async def test_its_logs_events_and_audit_are_there(former: Path) -> None:
    async with open_logs(former / "logs", LogSettings()) as logs:
        lines, _ = await LogReader(logs).read_last(EVERYTHING, 100)
    boots, records = EventFiles(former / "events").load()
    report = verify_log(former / "audit")

    assert {("worker", "stdout", "notes: none"), ("halted", "kernel", "ended: stopped: killed by SIGTERM")} <= {
        (line.name, line.stream, line.text) for line in lines
    }
    assert [boot.last for boot in boots] == [records[-1].seq]
    assert {"KERNEL_STARTED", "AGENT_READY", "STATE_CHANGED", "APPROVAL_DECIDED"} <= {one.type for one in records}
    assert (report.faults, report.last.seq) == ((), report.entries)
    calls = [row.call for row in iterate_all(former / "audit", Query(name="worker"))]
    assert {"THINK", "EXEC", "STORE", "APPROVAL_REQUESTED"} <= set(calls)


async def test_its_other_files_are_there(former: Path, tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir(0o700)
    with closing(HostIdRegistry(tmp_path / "registry", str(former))) as registry:
        ids = [json.loads(line) for line in (former / "outer-ids.json").read_text().splitlines()]
        given = await HostIdPool(former / "outer-ids.json", registry).take("worker", keeps_files=False)
    [(client, used_at)] = list_entries(former)
    key = (former / "mcp" / "request-state.key").read_text()

    assert {"name": "worker", "id": given.uid} in ids
    assert (client.guest, client.rights, used_at) == ("mcp:desk", "readonly", None)
    assert load_state_key(former).hex() == key
    assert "worker" in list_kept(former / "workspaces")


@pytest.mark.parametrize("former", [LAST_RELEASE], indirect=True)
def test_what_only_the_last_release_has_is_there(former: Path) -> None:
    record, sessions = read_record(former), Sessions.load(former / "dashboard", "next", "127.0.0.1:9000")

    assert record is not None
    assert (record.ended, record.database.commits > 0) == (True, True)
    assert [(one.role, one.browser) for one in sessions.live()] == [("viewer", "Firefox")]


def test_every_kind_is_shown_by_storage(former: Path) -> None:
    found = {(held.owner, held.kind) for held in measure_storage(former)}

    wanted = [("worker", "workspaces"), ("worker", "logs"), ("worker", "state"), ("operator", "state")]
    kernels = ("audit", "events", "approvals", "database", "mcp", "dashboard", "other")
    assert {*wanted, *(("kernel", kind) for kind in kernels)} <= found


def read_columns(path: Path) -> Mapping[str, object]:
    """The columns of a database's tables, and the versions of their owners."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {
            f"{table}.{column}": tuple(more)
            for table in tables
            for _, column, *more in connection.execute(f"PRAGMA table_info({table})")
        }
        return columns | {f"version of {name}": number for name, number in connection.execute("SELECT * FROM owners")}


async def test_no_column_is_lost_or_changed(former: Path) -> None:
    before = read_columns(former / "agentos.db")
    async with open_database(former / "agentos.db", SCHEMAS):
        pass

    columns = {name: column for name, column in before.items() if not name.startswith("version of ")}
    assert read_columns(former / "agentos.db").items() >= columns.items()


@pytest.mark.parametrize("former", [LAST_RELEASE], indirect=True)
async def test_the_last_release_opens_the_database_again(former: Path) -> None:
    """It refuses a table with a step that it doesn't know, and ignores tables of others: what is new has an owner."""
    before = read_columns(former / "agentos.db")
    async with open_database(former / "agentos.db", SCHEMAS):
        pass

    assert read_columns(former / "agentos.db").items() >= before.items()


def read_lines(state_dir: Path) -> set[tuple[str, str]]:
    """The lines of event and log files."""
    return {
        (name, line)
        for name in ("events", "logs")
        for path in (state_dir / name).iterdir()
        for line in path.read_text().splitlines()
        if line
    }


def find_keys(lines: set[tuple[str, str]]) -> set[tuple[str, bool, str, type]]:
    """The keys of lines, with the types of their values."""
    return {
        (name, bool(found.keys() & {"seq", "stream"}), key, type(value))
        for name, line in lines
        for found in [json.loads(line)]
        for key, value in found.items()
        if value
    }


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_a_kernel_goes_on_with_it(own_kernel: OwnKernel, archive: Path) -> None:
    kernel = own_kernel("")
    kernel.stop()
    for path in sorted(kernel.state_dir.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    unpack(archive, kernel.state_dir)
    (kernel.state_dir / "outer-ids.json").unlink()  # the ids may be another kernel's on this host
    before = read_lines(kernel.state_dir)
    write_programs(kernel.place)
    kernel.place.chmod(0o755)

    kernel.start_again()

    with kernel.client() as client:

        def asked() -> list[Mapping[str, Any]]:
            return [one for one in client.approvals()["pending"] if one["agent"] == "worker" and one["caller_present"]]

        until(asked, "the agent asks for its second command: the first is answered for always")
        tools = run_agentos(["tools", "notes", "--socket", kernel.socket], kernel.place, environment(kernel.place))
        states = {one["name"]: one["state"] for one in client.list_agents(all=True)}
        lines = [one["text"] for one in up(client.logs("worker", since=1))["lines"]]
        assert up(client.fetch("plan"))["value"] == {"until": 100}
        up(client.store("plan", {"until": 200}))
        assert up(client.fetch("count", "agent", "worker"))["value"] == 2
        assert [("second" in one["shown"], one["id"] > 3) for one in asked()] == [(True, True)]
    assert "add" in tools.stdout
    assert states["halted"] == "stopped"
    assert [line for line in lines if line.startswith("notes: ")] == ["notes: none", "notes: kept"]
    kernel.stop()
    assert verify_log(kernel.state_dir / "audit").faults == ()
    after = read_lines(kernel.state_dir)
    assert after >= before
    missing = find_keys(before) - find_keys(after - before)
    assert not missing, "the former release reads these: add keys, and leave none out"
