"""The files of a task's directory: saved, compared, restored, and applied from a copy."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.userland.task import records, saved_files
from agentos.userland.task.directory import TaskDirectory
from agentos.userland.task.saved_files import Change, SaveError

NOBODY = 65534  # uid and gid


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "work"
    (place / "closed").mkdir(parents=True)
    (place / "closed" / "file").write_text("as it was")
    (place / "closed").chmod(0o500)
    return place


def test_a_read_only_directory_is_restored_with_its_file_and_times(work: Path) -> None:
    saved = TaskDirectory.save(str(work), with_copy=False)
    before = os.stat(work / "closed" / "file")
    (work / "closed").chmod(0o700)
    (work / "closed" / "file").write_text("as it is!")
    os.utime(work / "closed" / "file", ns=(before.st_mtime_ns, before.st_mtime_ns))

    changes = saved.changes()
    undone = saved.undo()

    assert changes == [Change("changed", "closed"), Change("changed", "closed/file")]
    assert undone.done == changes
    assert (work / "closed" / "file").read_text() == "as it was"
    assert os.stat(work / "closed" / "file").st_mtime_ns == before.st_mtime_ns
    assert os.stat(work / "closed").st_mode & 0o777 == 0o500
    assert saved.changes() == []


def test_a_file_that_was_only_written_anew_is_not_changed(work: Path) -> None:
    saved = TaskDirectory.save(str(work), with_copy=False)

    (work / "closed" / "file").write_text("as it was")

    assert saved.changes() == []


def test_pipes_are_left_alone(work: Path) -> None:
    os.mkfifo(work / "pipe")

    saved = TaskDirectory.save(str(work), with_copy=True)

    assert saved.changes() == []
    assert not (Path(saved.workspace) / "pipe").exists()


def test_no_applied_file_runs_with_the_rights_of_its_owner(work: Path) -> None:
    saved = TaskDirectory.save(str(work), with_copy=True)
    program = Path(saved.workspace) / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o4755)

    applied = saved.apply()

    assert applied.done == [Change("added", "program")]
    assert os.stat(work / "program").st_mode & 0o7777 == 0o755


def test_a_copy_is_compared_with_what_it_was_applied_to(work: Path) -> None:
    saved = TaskDirectory.save(str(work), with_copy=True)
    (Path(saved.workspace) / "one").write_text("1")
    saved.apply()
    (Path(saved.workspace) / "two").write_text("2")

    assert saved.proposed() == [Change("added", "two")]
    assert saved.apply().left == []
    assert saved.undo().done == [Change("added", "one"), Change("added", "two")]


def test_too_many_files_are_refused_and_nothing_is_kept(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_files, "MAX_BYTES", 3)

    with pytest.raises(SaveError, match="name a directory in it"):
        TaskDirectory.save(str(work), with_copy=False)

    assert list(records.saved_directory().iterdir()) == []


def test_the_oldest_saved_files_are_removed(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_SAVED", 2)
    saved = [TaskDirectory.save(str(work), with_copy=False) for _ in range(3)]

    assert [one.place.is_dir() for one in saved] == [False, True, True]
    with pytest.raises(SaveError, match="no longer kept"):
        saved[0].undo()


def test_files_that_can_not_be_read_any_more_are_named(work: Path) -> None:
    saved = TaskDirectory.save(str(work), with_copy=False)
    shutil.copy(work / "closed" / "file", work / "new")
    (saved.place / "files.json").write_text('{"a": [1]}')

    with pytest.raises(SaveError, match=r"files\.json: the saved files can't be read"):
        saved.undo()


@pytest.fixture
def work_of_ordinary_user() -> Iterator[Path]:
    """A directory in one that belongs to an ordinary user, whose uid an agent without root shares."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        (Path(place) / "work").mkdir()
        if os.geteuid() == 0:
            for path in (place, f"{place}/work"):
                os.chown(path, NOBODY, NOBODY)
        yield Path(place) / "work"


BEGIN = f"""
import os
from agentos.userland.task.directory import TaskDirectory
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(*[{NOBODY}] * 3)
    os.setresuid(*[{NOBODY}] * 3)
"""


def run_as_ordinary_user(work: Path, program: str) -> str:
    """Run Python code in the directory ``work``; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        cwd=work,
        env={**os.environ, "XDG_STATE_HOME": str(work.parent / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_agent_can_not_prevent_undo_by_permissions(work_of_ordinary_user: Path) -> None:
    work = work_of_ordinary_user

    shown = run_as_ordinary_user(
        work,
        """
open("a", "w").write("as it was")
os.mkdir("closed"); open("closed/file", "w").write("as it was"); os.chmod("closed", 0o500)
saved = TaskDirectory.save(os.getcwd(), False)
os.chmod("closed", 0o700); open("closed/file", "w").write("new"); open("closed/new", "w"); os.chmod("closed", 0o500)
os.mkdir("added"); open("added/file", "w"); os.chmod("added", 0o500)
os.makedirs("hidden/deep"); os.chmod("hidden/deep", 0); os.chmod("hidden", 0)
os.remove("a"); os.chmod(".", 0o500)
print(*(change.path for change in saved.undo().done))
print(*(change.path for change in saved.changes()))
""",
    )

    assert shown == "a added added/file closed/file closed/new hidden hidden/deep\n\n"
    assert sorted(path.relative_to(work).as_posix() for path in work.rglob("*")) == ["a", "closed", "closed/file"]
    assert (work / "closed/file").read_text() == (work / "a").read_text() == "as it was"
    assert (work / "closed").stat().st_mode & 0o777 == 0o500


def test_a_directory_without_permissions_of_the_user_is_not_saved_and_stays_as_it_is(
    work_of_ordinary_user: Path,
) -> None:
    shown = run_as_ordinary_user(
        work_of_ordinary_user,
        """
os.mkdir("mine"); os.chmod("mine", 0)
try: TaskDirectory.save(os.getcwd(), False)
except Exception as error: print(error)
""",
    )

    assert "/mine: it can't be read: Permission denied" in shown
    assert (work_of_ordinary_user / "mine").stat().st_mode & 0o777 == 0


def test_more_files_than_can_be_saved_are_undone(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = TaskDirectory.save(str(work), with_copy=False)
    monkeypatch.setattr(saved_files, "MAX_ENTRIES", 2)
    (work / "new").write_text("new")

    assert saved.undo().done == [Change("added", "new")]
    (work / "new").write_text("new")
    with pytest.raises(SaveError, match="more than 2 files can't be saved"):
        TaskDirectory.save(str(work), with_copy=False)


def test_directories_in_each_other_without_end_are_undone(work: Path) -> None:
    saved = TaskDirectory.save(str(work), with_copy=True)
    for top in (str(work), saved.workspace):
        fd = os.open(top, os.O_RDONLY)
        for _ in range(2500):
            os.mkdir("d", dir_fd=fd)
            below = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)

    saved.apply()
    saved.undo()

    assert [path.name for path in work.iterdir()] == ["closed"]
    saved_files.remove_tree(saved.place)
    assert not saved.place.exists()


def test_undo_does_not_follow_a_link_in_the_place_of_the_directory(work: Path) -> None:
    inner = work / "inner"
    inner.mkdir()
    saved = TaskDirectory.save(str(inner), with_copy=False)
    (work / "other").mkdir()
    (work / "other/file").write_text("other")
    inner.rmdir()
    inner.symlink_to("other")

    with pytest.raises(SaveError, match="inner"):
        saved.undo()

    assert (work / "other/file").read_text() == "other"
