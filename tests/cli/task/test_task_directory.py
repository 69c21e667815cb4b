"""The files of a task's directory: saved, compared, restored, and applied from a copy."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agentos.userland.task import records, saved_files, saving_again
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


def test_files_with_names_outside_of_the_directory_are_named_but_for_a_copy(work: Path) -> None:
    for name in ("a", "inside", "pair/one"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("x")
    os.link(work / "inside", work / "inside too")
    os.link(work / "a", work.parent / "outside")
    os.link(work / "pair" / "one", work / "pair" / "two")
    os.link(work / "pair" / "one", work.parent / "third")

    assert TaskDirectory.save(str(work), with_copy=False).linked() == ["a", "pair/one", "pair/two"]
    assert TaskDirectory.save(str(work), with_copy=True).linked() == []


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
from agentos.userland.cli.task.review import show_diff
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


def test_a_file_without_permissions_is_shown_as_such_in_a_diff(work_of_ordinary_user: Path) -> None:
    shown = run_as_ordinary_user(
        work_of_ordinary_user,
        """
saved = TaskDirectory.save(os.getcwd(), True)
open(f"{saved.workspace}/a", "w").write("task"); os.chmod(f"{saved.workspace}/a", 0)
show_diff(saved.path, saved.workspace, saved.proposed())
""",
    )

    assert shown == "A a: nothing -> a file that can't be read: Permission denied\n"


def test_more_files_than_can_be_saved_are_undone(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = TaskDirectory.save(str(work), with_copy=False)
    monkeypatch.setattr(saved_files, "MAX_ENTRIES", 2)
    (work / "new").write_text("new")

    assert saved.undo().done == [Change("added", "new")]
    (work / "new").write_text("new")
    with pytest.raises(SaveError, match="more than 2 files can't be saved"):
        TaskDirectory.save(str(work), with_copy=False)


@pytest.mark.parametrize("with_copy", [False, True])
def test_directories_in_each_other_without_end_are_undone(
    work: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, with_copy: bool
) -> None:
    request.addfinalizer(partial(subprocess.run, ["rm", "-rf", tmp_path], check=True))  # pytest can't, if this fails
    request.addfinalizer(partial((work / "closed").chmod, 0o700))
    monkeypatch.setattr(saved_files, "MAX_DEPTH", 20)
    saved = TaskDirectory.save(str(work), with_copy)
    fd = os.open(saved.workspace, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)

    if with_copy:
        saved.apply()
    saved.undo()

    for top in {str(work), saved.workspace}:
        assert os.listdir(top) == ["closed"]
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


# -- Changes of the user's ---------------------------------------------------------------------------------------------


def test_what_the_user_changes_before_a_task_goes_on_is_not_the_tasks(work: Path) -> None:
    for name in ("a", "b", "c"):
        (work / name).write_text("as it was")
    saved = TaskDirectory.save(str(work), with_copy=False)
    (work / "a").write_text("task")
    (work / "b").unlink()
    (work / "new").mkdir()
    (work / "new/file").write_text("task")
    saved.note_end()
    (work / "a").write_text("mine")
    (work / "c").unlink()
    (work / "new/mine").write_text("mine")

    saved.note_start()
    between = saved.changes()
    (work / "a").write_text("task again")
    (work / "c").write_text("task again")
    shutil.rmtree(work / "new")
    saved.note_end()
    saved.undo()

    assert between == [Change("removed", "b"), Change("added", "new/file")]
    assert {path.relative_to(work).as_posix(): path.read_text() for path in work.rglob("*") if path.is_file()} == {
        "a": "mine",
        "b": "as it was",
        "new/mine": "mine",
        "closed/file": "as it was",
    }
    assert saved.changes() == []


def test_a_directory_that_the_user_replaces_by_a_file_stays_a_file(work: Path) -> None:
    (work / "old/inner").mkdir(parents=True)
    (work / "old/inner/file").write_text("as it was")
    (work / "plain").write_text("as it was")
    saved = TaskDirectory.save(str(work), with_copy=False)
    shutil.rmtree(work / "old/inner")
    (work / "plain").unlink()
    (work / "plain").mkdir()
    saved.note_end()
    (work / "old").rmdir()
    (work / "old").write_text("mine")
    (work / "plain/mine").write_text("mine")

    left = saved.undo().left
    saved.note_start()
    (work / "old").unlink()
    shutil.rmtree(work / "plain")
    saved.note_end()
    saved.undo()

    assert Change("changed", "old") in left
    assert (work / "old").read_text() == (work / "plain/mine").read_text() == "mine"


def test_a_directory_that_the_user_removes_is_restored_with_the_file_that_the_task_had_removed(work: Path) -> None:
    (work / "old").mkdir()
    (work / "old/file").write_text("as it was")
    (work / "old/more").write_text("as it was")
    saved = TaskDirectory.save(str(work), with_copy=False)
    (work / "old/file").unlink()
    saved.note_end()
    shutil.rmtree(work / "old")

    assert saved.undo().left == [Change("removed", "old/more")]
    assert [path.name for path in (work / "old").iterdir()] == ["file"]


def test_a_second_undo_leaves_what_the_first_one_left(work: Path) -> None:
    saved = TaskDirectory.save(str(work), with_copy=False)
    (work / "a").write_text("task")
    saved.note_end()
    (work / "a").write_text("mine")

    left = [saved.undo().left for _ in range(2)]

    assert left == [[Change("added", "a")]] * 2
    assert (work / "a").read_text() == "mine"


def test_undo_keeps_what_it_replaces_where_the_end_of_the_task_is_not_known(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a").write_text("as it was")
    saved = TaskDirectory.save(str(work), with_copy=False)
    (work / "a").write_text("mine, perhaps")
    (work / "d").mkdir()
    (work / "d/new").write_text("this, too")
    (work / "large").write_text("larger than what can be kept")
    monkeypatch.setattr(saving_again, "MAX_BYTES", 25)

    undone = saved.undo()

    kept = Path(undone.kept)
    assert ((kept / "a").read_text(), (kept / "d/new").read_text()) == ("mine, perhaps", "this, too")
    assert (undone.lost, (work / "a").read_text(), (work / "large").exists()) == (1, "as it was", False)
    assert saved.undo().kept == ""


def test_undo_of_a_review_leaves_what_was_never_applied(work: Path) -> None:
    (work / "a").write_text("as it was")
    saved = TaskDirectory.save(str(work), with_copy=True)
    (Path(saved.workspace) / "a").write_text("task")
    (work / "a").write_text("mine")

    undone = saved.undo()

    assert (undone.done, undone.discarded) == ([], 1)
    assert (work / "a").read_text() == "mine"
    assert saved.changes() == saved.proposed() == []


def test_undo_leaves_what_a_review_has_left(work: Path) -> None:
    for name in ("a", "b"):
        (work / name).write_text("as it was")
    saved = TaskDirectory.save(str(work), with_copy=True)
    for name in ("a", "b"):
        (Path(saved.workspace) / name).write_text("task")
    (work / "a").write_text("mine")

    applied = saved.apply()
    undone = saved.undo()

    assert applied.left == undone.left == [Change("changed", "a")]
    assert ((work / "a").read_text(), (work / "b").read_text()) == ("mine", "as it was")


def test_a_new_file_of_the_user_that_can_not_be_read_stops_the_task_before_it_goes_on(
    work_of_ordinary_user: Path,
) -> None:
    shown = run_as_ordinary_user(
        work_of_ordinary_user,
        """
open("a", "w").write("as it was")
saved = TaskDirectory.save(os.getcwd(), False)
open("a", "w").write("task")
saved.note_end()
open("a", "w").write("mine"); open("b", "w"); os.chmod("b", 0)
try: saved.note_start()
except Exception as error: print(error)
print(*(change.path for change in saved.undo().left))
""",
    )

    assert shown.endswith("/work/b: it can't be saved: Permission denied\na b\n")
