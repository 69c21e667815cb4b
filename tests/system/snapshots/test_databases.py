"""A database in a workspace is written all the time, and each snapshot of it is sound and has what was acknowledged."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernel import Kernel, descendants, stat_of, until
from tests.support.runs.rounds import is_night
from tests.system.agents import up

from .conftest import run

WRITERS = 3
KEPT = 2000  # rows of each writer: the database stays within the limit of the workspace
WRITER = f"""
import os, sqlite3, sys, time
number, path = sys.argv[1:]
database = sqlite3.connect("storm.db", timeout=600, isolation_level=None)
database.execute("PRAGMA journal_mode = WAL")
database.execute("PRAGMA wal_autocheckpoint = 20")
database.execute("CREATE TABLE IF NOT EXISTS rows (writer INTEGER, n INTEGER, text TEXT, PRIMARY KEY (writer, n))")
acknowledged = os.open(path, os.O_CREAT | os.O_WRONLY)
for n in range(1, 1 << 40):
    database.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    database.execute("INSERT INTO rows VALUES (?, ?, ?)", (number, n, "x" * (n % 3000)))
    database.execute("DELETE FROM rows WHERE writer = ? AND n <= ?", (number, n - {KEPT}))
    database.execute("COMMIT")
    os.pwrite(acknowledged, b"%020d" % n, 0)
    time.sleep(time.monotonic() - began)  # who asks again at once gets the lock, and the others wait for minutes
"""
BEGIN = f"""
import subprocess, sys
for number in range({WRITERS}):
    words = [sys.executable, "-c", {WRITER!r}, str(number), f"acknowledged-{{number}}"]
    subprocess.Popen(words, stderr=open("errors", "a"))
"""


SOUND = """
import sqlite3
assert sqlite3.connect("storm.db").execute("PRAGMA integrity_check").fetchall() == [("ok",)]
"""


def find_layer(kernel: Kernel, snapshot: str) -> Path:
    """The tree that a snapshot has of its own."""
    record = json.loads((kernel.state_dir / "snapshots" / snapshot / "record.json").read_text())
    return Path(kernel.state_dir, "layers", record["layers"][0], "tree")


def check_database(tree: Path, place: Path) -> list[int]:
    """The last acknowledged row of each writer; all of them, and each row up to there, are in the database."""
    place.mkdir()
    for file in tree.iterdir():
        shutil.copyfile(file, place / file.name)
    acknowledged = [int((place / f"acknowledged-{number}").read_bytes() or b"0") for number in range(WRITERS)]
    with closing(sqlite3.connect(place / "storm.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        for number, last in enumerate(acknowledged):
            query = "SELECT count(*), min(n), max(n), sum(length(text) <> n % 3000) FROM rows WHERE writer = ?"
            count, least, most, wrong = database.execute(query, (number,)).fetchone()
            assert (most >= last, count, wrong) == (True, most - least + 1, 0)
            assert least <= max(1, most - KEPT + 1)
    shutil.rmtree(place)
    return acknowledged


def find_upper(worker: Kernel) -> Path:
    """What the workspace has of its own, now."""
    layers = worker.state_dir / "layers" / "worker"  # there are others for as long as they are removed
    return Path(layers, json.loads((layers / "record.json").read_text())["layer"], "tree")


def progress(worker: Kernel) -> list[int]:
    """The last acknowledged row of each writer, now."""
    found = [find_upper(worker) / f"acknowledged-{number}" for number in range(WRITERS)]
    return [int(one.read_bytes() or b"0") if one.exists() else 0 for one in found]


def describe(worker: Kernel) -> str:
    """What the writers have done, what they wrote to stderr, and their states."""
    errors = find_upper(worker) / "errors"
    states = [(one.pid, stat_of(one.pid)) for one in descendants(worker.pid)]
    return f"{progress(worker)}, {errors.read_text() if errors.exists() else ''!r}, {states}"


def test_databases_that_are_written_meanwhile_are_sound_in_every_snapshot(worker: Kernel, tmp_path: Path) -> None:
    with worker.client() as client:
        run(client, BEGIN)
        last = [0] * WRITERS
        for number in range(1000 if is_night() else 5):
            until(
                lambda last=last: all(map(int.__gt__, progress(worker), last)),  # type: ignore[misc]
                f"all have written more than {last}",
                show=lambda: describe(worker),
            )

            taken = up(client.snapshot("worker"))["snapshot"]

            found = check_database(find_layer(worker, taken), tmp_path / str(number))
            assert all(map(int.__gt__, found, last))
            last = found
            up(client.snapshots("worker", remove=taken))
        up(client.snapshot("worker", "end"))
        up(client.rollback("worker", "end"))
        run(client, SOUND)


POSTGRES = max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), default=None)
BEGIN_POSTGRES = """
import os, subprocess
os.environ["PATH"] = {programs!r}
say = dict(stdout=open("log", "a"), stderr=subprocess.STDOUT, check=True)
subprocess.run(["initdb", "-D", "data", "-k", "-A", "trust", "-U", "agent", "--no-locale", "-E", "UTF8"], **say)
settings = "-k /tmp -c listen_addresses='' -c shared_buffers=8MB -c max_wal_size=32MB -c min_wal_size=32MB"
subprocess.run(["pg_ctl", "-D", "data", "-w", "-o", settings, "start"], **say)
subprocess.run(["psql", "-h", "/tmp", "-U", "agent", "postgres", "-c", "CREATE TABLE rows (n INT, text TEXT)"], **say)
subprocess.Popen(["sh", "-c", {write!r}], stdout=say["stdout"], stderr=say["stderr"])
"""
WRITE = """
n=0
while n=$((n + 1)); do
    echo "INSERT INTO rows VALUES ($n, repeat('x', $n % 3000)) RETURNING n;"
done | psql -h /tmp -U agent -qtA postgres | while read n; do
    echo $n > acknowledged.new && mv acknowledged.new acknowledged
done
"""
ASK = "SELECT 'seen', count(*), max(n), sum((length(text) <> n % 3000)::int) FROM rows"


@pytest.mark.skipif(POSTGRES is None, reason="NOT TESTED: PostgreSQL isn't installed here (Debian's postgresql)")
def test_postgresql_that_is_written_meanwhile_recovers_from_every_snapshot(worker: Kernel) -> None:
    assert POSTGRES is not None
    programs = f"{POSTGRES.parent}:/usr/bin:/bin"
    layers = worker.state_dir / "layers" / "worker"

    def written() -> int:
        layer = json.loads((layers / "record.json").read_text())["layer"]
        try:
            return int((layers / layer / "tree" / "acknowledged").read_text() or "0")
        except FileNotFoundError:
            return 0

    with worker.client() as client:
        run(client, BEGIN_POSTGRES.format(programs=programs, write=WRITE))
        last = 0
        for _ in range(50 if is_night() else 1):
            until(lambda last=last: written() > last, "more is written")  # type: ignore[misc]

            taken = up(client.snapshot("worker"))["snapshot"]

            acknowledged, count, most, wrong = recover(find_layer(worker, taken), POSTGRES)
            assert most >= acknowledged > last
            assert (count, wrong) == (most, 0)
            last = acknowledged
            up(client.snapshots("worker", remove=taken))


def recover(tree: Path, postgres: Path) -> tuple[int, int, int, int]:
    """The last acknowledged row of a copy; and what it has after recovery: rows, the last, wrong ones."""
    with tempfile.TemporaryDirectory(prefix="aos-postgres-", dir="/var/tmp") as made:
        copy = Path(made, "data")
        shutil.copytree(tree / "data", copy)
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to be
            user = {"user": 65534, "group": 65534, "extra_groups": []}
            for path in (Path(made), copy, *copy.rglob("*")):
                os.chown(path, 65534, 65534)
        ended = subprocess.run(
            [postgres, "--single", "-D", copy, "postgres"],
            input=ASK,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            **user,
        )
        values = [value for value in re.findall(r'\d: \w+ = "(\w+)"', ended.stdout) if value != "seen"]
        return (int((tree / "acknowledged").read_text()), *map(int, values))  # type: ignore[return-value]
