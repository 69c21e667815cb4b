"""The files of a task's directory: saved, compared, restored, and applied from a copy."""

import os
import shutil
from pathlib import Path

import pytest

from agentos.userland.task import records, saved_files
from agentos.userland.task.directory import TaskDirectory
from agentos.userland.task.saved_files import Change, SaveError


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
