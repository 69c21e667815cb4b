import json
import os
import subprocess
from pathlib import Path

import pytest

from agentos.agents.life.leftover_processes import (
    LIFE_VARIABLE,
    MAX_DIRECTORY_BYTES,
    RUN_VARIABLE,
    Run,
    kill_marked,
    parent_of,
    runtime_base,
)
from tests.support.kernel import marked, until
from tests.support.wire import PATIENCE


def sleeper(run: str, life: str) -> subprocess.Popen[bytes]:
    started = subprocess.Popen(["/bin/sleep", "1000"], env={RUN_VARIABLE: run, LIFE_VARIABLE: life})
    # Linux closes the descriptors of an exec, which tells the parent of it, before it sets the environment.
    until(lambda: marked(f"{RUN_VARIABLE}={run}", f"{LIFE_VARIABLE}={life}"), "its environment can be read")
    return started


def test_only_what_one_life_left_is_ended() -> None:
    ours, next_life, other_run = sleeper("run", "7.1"), sleeper("run", "7.2"), sleeper("run2", "7.1")
    try:
        assert kill_marked("run", {"7.1", "8.1"}) == [ours.pid]

        assert ours.wait(PATIENCE) == -9
        assert (next_life.poll(), other_run.poll()) == (None, None)
        assert kill_marked("run", None) == [next_life.pid]
        assert next_life.wait(PATIENCE) == -9
    finally:
        other_run.kill()
        other_run.wait(PATIENCE)


def test_a_run_that_was_killed_is_cleared_away_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path) if len(str(tmp_path)) < MAX_DIRECTORY_BYTES else "/tmp")
    first = Run.begin(tmp_path)
    left = sleeper(first.id, "1.1")

    second = Run.begin(tmp_path)

    assert left.wait(PATIENCE) == -9
    assert not os.path.exists(first.directory)
    assert os.stat(second.directory).st_mode & 0o777 == 0o700
    assert json.loads((tmp_path / "run.json").read_text())["id"] == second.id != first.id
    second.end()


@pytest.mark.parametrize(
    "note", ["", "{}", "[1]", '{"id": 1}', '{"id": "a", "directory": []}', "[" * 100_000, "\udcff"]
)
def test_a_broken_note_of_the_last_run_is_no_hindrance(tmp_path: Path, note: str) -> None:
    (tmp_path / "run.json").write_bytes(os.fsencode(note))

    Run.begin(tmp_path).end()


def test_the_runtime_directory_is_short_and_there_and_in_memory_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    in_memory = [place for place in ("/run", "/dev/shm") if [place, "tmpfs"] in mounts and os.access(place, os.W_OK)]
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/no/such")
    for useless in (str(long), "/no/such", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", useless)
        assert runtime_base() == [*in_memory, "/tmp"][0]

    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert runtime_base() == "/var/tmp"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/var")
    assert runtime_base() == "/var" if os.geteuid() == 0 else "/var/tmp"


def test_a_parent_is_found_whatever_a_process_is_called() -> None:
    assert parent_of(os.getpid()) == os.getppid()
    assert parent_of(4_194_305) is None
